//! Kernels and the root file system, from Debian packages, kept for later runs.
//!
//! Everything is below one directory. Remove it to get newer packages.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// That of the host's Debian release.
    Stable,
    /// The newer one that is built for this release.
    Backports,
}

impl Kernel {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kernel::Stable => "stable",
            Kernel::Backports => "backports",
        }
    }

    pub(crate) fn from_name(name: &str) -> anyhow::Result<Kernel> {
        let mut all = [Kernel::Stable, Kernel::Backports].into_iter();
        all.find(|kernel| kernel.name() == name)
            .with_context(|| format!("no kernel {name}; use stable or backports"))
    }
}

/// The packages of the root file system, beside those that every Debian has.
const PACKAGES: &str =
    "systemd-sysv,udev,kmod,iproute2,iputils-ping,procps,curl,ethtool,util-linux";

/// Files of these packages that no check reads.
const LEFT_OUT: [&str; 4] =
    ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*"];

/// The kernel modules of a guest. Those that they need come with them.
const MODULES: [&str; 14] = [
    "8021q",
    "autofs4",
    "bonding",
    "crc32_generic",
    "e1000e",
    "rdma_rxe",
    "rdma_ucm",
    "tun",
    "veth",
    "vfio-pci",
    "vfio_iommu_type1",
    "virtio_blk",
    "virtio_net",
    "virtio_pci",
];

/// A Debian archive of the host.
#[derive(Debug)]
struct Archive {
    address: String,
    suite: String,
}

/// The directory with everything that was fetched.
#[derive(Debug)]
pub(crate) struct Cache {
    directory: PathBuf,
}

impl Cache {
    pub(crate) fn new(directory: &Path) -> anyhow::Result<Cache> {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        Ok(Cache { directory: directory.to_owned() })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Waits until no other process or thread makes an archive, and keeps them from it for as long as the
    /// file is open.
    pub(crate) fn lock(&self) -> anyhow::Result<File> {
        let path = self.directory.join("lock");
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        if file.try_lock().is_err() {
            eprintln!("towpath-guest: waiting for another guest that is being prepared");
            file.lock().with_context(|| path.display().to_string())?;
        }
        Ok(file)
    }

    /// Returns the archive (cpio) of the root file system. The caller has the lock.
    pub(crate) fn root(&self) -> anyhow::Result<PathBuf> {
        let archive = self.directory.join("root.cpio");
        let recipe = format!("{PACKAGES} {LEFT_OUT:?}");
        if self.is_made(&archive, &recipe) {
            return Ok(archive);
        }
        eprintln!("towpath-guest: making the root file system of the guests");
        let tar = self.directory.join("root.tar");
        let sources = self.directory.join("sources");
        let archives = archives()?;
        fs::write(&sources, lines(&archives))?;
        let mut make = Command::new("mmdebstrap");
        make.args(["--quiet", "--variant=minbase"]).arg(format!("--include={PACKAGES}"));
        for pattern in LEFT_OUT {
            make.arg(format!("--dpkgopt=path-exclude={pattern}"));
        }
        // The checks install a package whole.
        make.arg("--customize-hook=rm -f \"$1\"/etc/dpkg/dpkg.cfg.d/99mmdebstrap");
        run(make.arg(&release()?).arg(&tar).arg(&sources))?;
        let mut convert = Command::new("bsdtar");
        convert.arg("-cf").arg(&archive).arg("--format=newc");
        run(convert.arg(format!("@{}", tar.display())))?;
        fs::remove_file(&tar)?;
        self.made(&archive, &recipe)?;
        Ok(archive)
    }

    /// Returns a kernel's image, and the archive (cpio) of its modules. The caller has the lock.
    pub(crate) fn kernel(&self, kernel: Kernel) -> anyhow::Result<(PathBuf, PathBuf)> {
        let directory = self.directory.join(kernel.name());
        let (image, modules) = (directory.join("vmlinuz"), directory.join("modules.cpio"));
        let recipe = format!("{MODULES:?}");
        if self.is_made(&modules, &recipe) {
            return Ok((image, modules));
        }
        eprintln!("towpath-guest: fetching the kernel of {}", kernel.name());
        let _ = fs::remove_dir_all(&directory);
        let unpacked = directory.join("unpacked");
        fs::create_dir_all(&unpacked)?;
        let package = download(&directory, kernel)?;
        run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&unpacked))?;
        let version = only(&unpacked.join("lib/modules"))?;
        let version = version.file_name().and_then(|name| name.to_str()).context("a version")?;
        fs::copy(unpacked.join(format!("boot/vmlinuz-{version}")), &image)?;
        let stage = directory.join("stage");
        take_modules(&unpacked, &stage, version)?;
        pack(&stage, &modules)?;
        for done in [&unpacked, &stage] {
            fs::remove_dir_all(done)?;
        }
        fs::remove_file(&package)?;
        self.made(&modules, &recipe)?;
        Ok((image, modules))
    }

    /// Returns `true` if a file was made by this recipe.
    fn is_made(&self, file: &Path, recipe: &str) -> bool {
        fs::read_to_string(file.with_extension("recipe")).is_ok_and(|made| made == recipe)
    }

    fn made(&self, file: &Path, recipe: &str) -> anyhow::Result<()> {
        Ok(fs::write(file.with_extension("recipe"), recipe)?)
    }
}

/// Writes a directory into an archive that the kernel unpacks at its start.
pub(crate) fn pack(directory: &Path, archive: &Path) -> anyhow::Result<()> {
    let mut pack = Command::new("bsdtar");
    pack.arg("-cf").arg(archive).args(["--format=newc", "--uid=0", "--gid=0", "-C"]);
    run(pack.arg(directory).arg("."))
}

/// Copies the modules, those that they need, and the lists that modprobe reads.
fn take_modules(unpacked: &Path, stage: &Path, version: &str) -> anyhow::Result<()> {
    run(Command::new("/sbin/depmod").arg("-b").arg(unpacked).arg(version))?;
    let from = unpacked.join("lib/modules").join(version);
    // /lib is a link to usr/lib.
    let to = stage.join("usr/lib/modules").join(version);
    let needs = fs::read_to_string(from.join("modules.dep"))?;
    let builtin = fs::read_to_string(from.join("modules.builtin"))?;
    for module in MODULES {
        // Whether a driver is a module differs from kernel to kernel.
        if builtin.lines().any(|path| is_module(path, module)) {
            continue;
        }
        let line = needs
            .lines()
            .find(|line| is_module(line.split(':').next().unwrap_or_default(), module));
        let line = line.with_context(|| format!("Linux {version} has no module {module}"))?;
        for path in line.split([':', ' ']).filter(|path| !path.is_empty()) {
            let copy = to.join(path);
            fs::create_dir_all(copy.parent().context("a module in no directory")?)?;
            fs::copy(from.join(path), copy)?;
        }
    }
    for list in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        fs::copy(from.join(list), to.join(list))?;
    }
    // modprobe finds the lists of depmod below lib/modules alone.
    std::os::unix::fs::symlink("usr/lib", stage.join("lib"))?;
    run(Command::new("/sbin/depmod").arg("-b").arg(stage).arg(version))?;
    Ok(fs::remove_file(stage.join("lib"))?)
}

/// Returns `true` if a file is that of a module, by its name.
fn is_module(path: &str, module: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or_default();
    file.split(".ko").next().unwrap_or_default().replace('-', "_") == module.replace('-', "_")
}

/// Fetches the package of a kernel, by lists of packages that are not the host's.
fn download(directory: &Path, kernel: Kernel) -> anyhow::Result<PathBuf> {
    let release = release()?;
    let mut archives = archives()?;
    if kernel == Kernel::Backports {
        archives.retain(|archive| archive.suite == release);
        archives.iter_mut().for_each(|archive| archive.suite = format!("{release}-backports"));
    }
    let lists = directory.join("apt");
    for folder in ["state/lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(lists.join(folder))?;
    }
    fs::write(lists.join("status"), "")?;
    fs::write(lists.join("sources"), self::lines(&archives))?;
    let apt = |program: &str| {
        let mut command = Command::new(program);
        for (option, value) in [
            ("Dir::State", "state"),
            ("Dir::State::status", "status"),
            ("Dir::Cache", "cache"),
            ("Dir::Etc::SourceList", "sources"),
            ("Dir::Etc::SourceParts", "none"),
        ] {
            command.arg("-o").arg(format!("{option}={}", lists.join(value).display()));
        }
        command.args(["-o", "APT::Sandbox::User=root", "-q"]);
        command
    };
    run(apt("apt-get").arg("update"))?;
    let mut depends = apt("apt-cache");
    let depends = depends.args(["depends", "linux-image-amd64"]).output().context("apt-cache")?;
    let depends = String::from_utf8(depends.stdout)?;
    let image = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let image = image.context("the package linux-image-amd64 names no kernel")?;
    run(apt("apt-get").args(["download", image]).current_dir(directory))?;
    let files = fs::read_dir(directory)?.map(|entry| Ok(entry?.path()));
    let mut files = files.collect::<std::io::Result<Vec<_>>>()?.into_iter();
    let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
    files.find(is_package).with_context(|| format!("apt-get wrote no package of {image}"))
}

/// Returns the Debian archives that the host uses.
fn archives() -> anyhow::Result<Vec<Archive>> {
    let mut list = Command::new("apt-get");
    list.args(["indextargets", "--format", "$(ORIGIN) $(COMPONENT) $(REPO_URI) $(RELEASE)"]);
    let listed = list.arg("Created-By: Packages").output().context("apt-get indextargets")?;
    let listed = String::from_utf8(listed.stdout)?;
    let archive = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["Debian", "main", address, suite] = words[..] else { return None };
        Some(Archive { address: address.to_owned(), suite: suite.to_owned() })
    };
    let archives: Vec<Archive> = listed.lines().filter_map(archive).collect();
    ensure!(!archives.is_empty(), "apt-get knows no Debian archive; run apt-get update");
    Ok(archives)
}

fn lines(archives: &[Archive]) -> String {
    let line = |archive: &Archive| format!("deb {} {} main\n", archive.address, archive.suite);
    archives.iter().map(line).collect()
}

/// Returns the name of the host's Debian release.
fn release() -> anyhow::Result<String> {
    let text = fs::read_to_string("/etc/os-release")?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.context("/etc/os-release names no release")?.trim_matches('"').to_owned())
}

/// Returns the only entry of a directory.
fn only(directory: &Path) -> anyhow::Result<PathBuf> {
    let mut entries = fs::read_dir(directory)?;
    let entry = entries.next().with_context(|| format!("{} is empty", directory.display()))??;
    Ok(entry.path())
}

/// Runs a command. Its output is shown if it fails.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| missing(&name))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{name}: {}: {}", output.status, said.trim());
    Ok(())
}

/// Says how to install a program, with the others that this experiment needs.
pub(crate) fn missing(program: &str) -> String {
    format!(
        "{program} is missing; apt-get install qemu-system-x86 mmdebstrap libarchive-tools kmod"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = run(&mut Command::new("/nonexistent/bsdtar")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/bsdtar is missing"), "{error}");
        assert!(error.contains("libarchive-tools"), "{error}");
        let error = run(&mut Command::new("/bin/false")).unwrap_err().to_string();
        assert!(error.contains("/bin/false: exit status: 1"), "{error}");
    }

    #[test]
    fn modules_are_known_by_their_files() {
        assert!(is_module("kernel/drivers/virtio/virtio_pci.ko.xz", "virtio_pci"));
        assert!(is_module("kernel/net/8021q/8021q.ko", "8021q"));
        assert!(is_module("kernel/drivers/net/virtio-net.ko", "virtio_net"));
        assert!(!is_module("kernel/drivers/virtio/virtio_pci_modern_dev.ko", "virtio_pci"));
    }
}
