//! Memory and cores.
#![forbid(unsafe_code)]

use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;
use towpath_device::xdp::{Mode, least_locked_bytes, wanted_locked_bytes};
use towpath_sandbox::{cores, probe};

use super::finding::{Finding, Standing, read};

pub(super) fn look() -> Vec<Finding> {
    vec![huge_pages(), transparent_huge_pages(), locked_memory(), cpus(), virtual_machine()]
}

fn huge_pages() -> Finding {
    let (mut sizes, mut free_of_2_mib) = (Vec::new(), 0);
    let pools = std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    for pool in pools.take(16) {
        let name = pool.file_name().to_string_lossy().into_owned();
        let number = |file: &str| -> u64 {
            let text = std::fs::read_to_string(pool.path().join(file)).unwrap_or_default();
            text.trim().parse().unwrap_or(0)
        };
        let (all, free) = (number("nr_hugepages"), number("free_hugepages"));
        let size = name.strip_prefix("hugepages-").unwrap_or(&name);
        if size == "2048kB" {
            free_of_2_mib = free;
        }
        sizes.push(format!("{size}: {free} of {all} free"));
    }
    sizes.sort();
    let found = if sizes.is_empty() {
        "cannot be read, or none in this kernel".to_owned()
    } else {
        sizes.join(", ")
    };
    Finding::new("huge pages", Standing::Ok, found, use_of_huge_pages(free_of_2_mib))
}

/// Returns what a server does with so many free huge pages of 2 MiB. It asks the kernel for all
/// that its memory needs, which depends on the device.
fn use_of_huge_pages(free: u64) -> &'static str {
    if free == 0 {
        "a server's own memory for packets has pages of 4 KiB; some of 2 MiB would serve it \
         (sysctl vm.nr_hugepages)"
    } else {
        "a server whose memory for packets fits into those of 2 MiB takes as many as it needs: with \
         --device xdp, for each lane 4 for its first hardware queue and 2 for each further one"
    }
}

fn transparent_huge_pages() -> Finding {
    let setting = |file: &str| {
        let text = read(&format!("/sys/kernel/mm/transparent_hugepage/{file}"))?;
        selected(&text).map(str::to_owned)
    };
    let (private, shared) = (setting("enabled"), setting("shmem_enabled"));
    let found = format!(
        "transparent huge pages of private memory: {}; of memory files: {}",
        private.as_deref().unwrap_or("unknown"),
        shared.as_deref().unwrap_or("unknown")
    );
    match shared.as_deref() {
        Some("always" | "within_size" | "advise" | "force") => Finding::new(
            "transparent",
            Standing::Ok,
            found,
            "session memories can have huge pages that nothing has to reserve",
        ),
        _ => Finding::new(
            "transparent",
            Standing::Limited,
            found,
            "session memories have pages of 4 KiB",
        )
        .remedy("echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"),
    }
}

/// Returns the word in brackets of `always [madvise] never`.
fn selected(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

fn locked_memory() -> Finding {
    // A server raises its limit as far as it may, before it drops its capabilities.
    let limit = getrlimit(Resource::Memlock).maximum;
    let raises = rustix::thread::capabilities(None)
        .is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_RESOURCE));
    let swaps = read("/proc/swaps").is_some_and(|swaps| swaps.lines().nth(1).is_some());
    locked(limit, raises, swaps)
}

fn locked(limit: Option<u64>, raises: bool, swaps: bool) -> Finding {
    let found = match limit {
        None => "no limit".to_owned(),
        Some(bytes) if raises => {
            format!("{} KiB, which CAP_SYS_RESOURCE lets a server raise", bytes / 1024)
        }
        Some(bytes) => format!("{} KiB", bytes / 1024),
    };
    let is_free = limit.is_none() || raises;
    let has = |bytes: usize| is_free || limit.is_some_and(|limit| limit >= bytes as u64);
    let (native, generic) = (wanted_locked_bytes(Mode::Native), wanted_locked_bytes(Mode::Generic));
    let mib = |bytes: usize| bytes.div_ceil(1 << 20);
    let wants = format!(
        "a server with --device xdp, one hardware queue and an MTU of 1500 locks {} MiB in native mode and {} MiB in \
         generic mode",
        mib(native),
        mib(generic)
    );
    let lacks = if has(generic) {
        None
    } else if has(native) {
        Some("generic mode has fewer receive buffers, and loses packets of shorter bursts")
    } else if has(least_locked_bytes()) {
        Some("it has fewer receive buffers, and loses packets of shorter bursts")
    } else {
        Some("it does not start")
    };
    let mut means = match lacks {
        Some(lacks) => format!("{wants}; with this limit, {lacks}"),
        None => wants,
    };
    let is_swapped = swaps && !is_free;
    if is_swapped {
        means +=
            "; there is a swap device, and sessions' memory beyond the limit may be swapped out";
    } else if swaps {
        means += "; it also locks its sessions' memory, because there is a swap device";
    }
    let standing = if lacks.is_some() || is_swapped { Standing::Limited } else { Standing::Ok };
    Finding::new("locked memory", standing, found, means).remedy(
        "ulimit -l unlimited, as root, before towpath serve; or LimitMEMLOCK=infinity in its unit",
    )
}

fn cpus() -> Finding {
    let list = cores().unwrap_or_default();
    let mut physical: Vec<_> = list.iter().map(|core| (core.package, core.core)).collect();
    physical.sort_unstable();
    physical.dedup();
    let numbers: Vec<_> = list.iter().take(64).map(|core| core.cpu.to_string()).collect();
    let mut found =
        format!("{} CPUs on {} cores: {}", list.len(), physical.len(), numbers.join(" "));
    if list.len() > numbers.len() {
        found.push_str(" ...");
    }
    if let Some(isolated) = read("/sys/devices/system/cpu/isolated").filter(|set| !set.is_empty()) {
        found.push_str(&format!("; isolated: {isolated}"));
    }
    // Two threads that spin on one core slow each other down.
    match physical.len() {
        0 | 1 => Finding::new(
            "cores",
            Standing::Limited,
            found,
            "server and applications share one core: use wait=block, not poll",
        )
        .remedy("a machine, container or affinity with two cores, for wait=poll"),
        _ => Finding::new(
            "cores",
            Standing::Ok,
            found,
            "a server and an application can each have a core: wait=poll is possible",
        ),
    }
}

fn virtual_machine() -> Finding {
    let model = ["sys_vendor", "product_name"]
        .iter()
        .filter_map(|file| read(&format!("/sys/class/dmi/id/{file}")))
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name))
        .map_or("unknown processor", str::trim);
    let described = if model.is_empty() { String::new() } else { format!(", {model}") };
    match probe::hypervisor() {
        Some(vendor) => Finding::new(
            "machine",
            Standing::Ok,
            format!("virtual ({vendor}){described}, {processor}"),
            "waking a sleeping core also costs the hypervisor's time; wait=poll avoids that",
        ),
        None => Finding::new(
            "machine",
            Standing::Ok,
            format!("no hypervisor{described}, {processor}"),
            "waking a sleeping core is cheap: wait=block costs little",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_says_what_af_xdp_lacks() {
        let means = |limit: u64| locked(Some(limit), false, false).means;
        let both = "locks 11 MiB in native mode and 19 MiB in generic mode";
        for (limit, lacks) in [
            (19 << 20, None),
            (11 << 20, Some("with this limit, generic mode has fewer receive buffers")),
            (8 << 20, Some("with this limit, it has fewer receive buffers")),
            (64 << 10, Some("with this limit, it does not start")),
        ] {
            let means = means(limit);
            assert!(means.contains(both), "{means}");
            assert_eq!(means.contains("with this limit"), lacks.is_some(), "{means}");
            assert!(lacks.is_none_or(|lacks| means.contains(lacks)), "{means}");
        }
    }

    #[test]
    fn a_limit_suffices_for_a_swap_device_and_for_af_xdp() {
        for (limit, raises, swaps, standing) in [
            (Some(8 << 20), false, false, Standing::Limited),
            (Some(19 << 20), false, false, Standing::Ok),
            (Some(11 << 20), false, false, Standing::Limited),
            (None, false, true, Standing::Ok),
            (Some(8 << 20), true, true, Standing::Ok),
            (Some(8 << 20), false, true, Standing::Limited),
            (Some(64 << 10), false, false, Standing::Limited),
            (Some(64 << 10), false, true, Standing::Limited),
            (Some(64 << 10), true, false, Standing::Ok),
        ] {
            let finding = locked(limit, raises, swaps);
            assert_eq!(finding.standing, standing, "{limit:?} {raises} {swaps}");
            assert_eq!(finding.remedy.is_some(), standing == Standing::Limited);
        }
    }

    #[test]
    fn free_huge_pages_are_used_and_none_are_no_fault() {
        assert!(use_of_huge_pages(0).contains("pages of 4 KiB"));
        assert!(use_of_huge_pages(4).contains("takes as many as it needs"));
        let finding = huge_pages();
        assert_eq!((finding.standing, finding.remedy), (Standing::Ok, None));
    }

    #[test]
    fn the_chosen_setting_is_the_one_in_brackets() {
        assert_eq!(selected("always [madvise] never"), Some("madvise"));
        for odd in ["", "always", "[open", "shut]", "]["] {
            assert_eq!(selected(odd), None, "{odd:?}");
        }
    }
}
