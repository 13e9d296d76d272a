//! Users and groups, as the command line and files name them.
#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use super::as_text::as_text;

/// A user, by name or number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    text: String,
    pub(crate) uid: u32,
}

impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> Result<User, String> {
        let uid = match text.parse() {
            Ok(uid) => uid,
            Err(_) => uzers::get_user_by_name(text)
                .ok_or_else(|| format!("no user {text}; see: getent passwd"))?
                .uid(),
        };
        Ok(User { text: text.to_owned(), uid: possible(uid, text)? })
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

as_text!(User, "a user's name or number");

/// A group, by name or number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    text: String,
    pub(crate) gid: u32,
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Group, String> {
        let gid = match text.parse() {
            Ok(gid) => gid,
            Err(_) => uzers::get_group_by_name(text)
                .ok_or_else(|| format!("no group {text}; see: getent group"))?
                .gid(),
        };
        Ok(Group { text: text.to_owned(), gid: possible(gid, text)? })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

as_text!(Group, "a group's name or number");

/// The user that the server itself runs as, and its group: the account's group by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    text: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl FromStr for Identity {
    type Err = String;

    fn from_str(text: &str) -> Result<Identity, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group.parse::<Group>()?)),
            None => (text, None),
        };
        let user: User = user.parse()?;
        let gid = match group {
            Some(group) => group.gid,
            None => uzers::get_user_by_uid(user.uid)
                .ok_or_else(|| {
                    format!("user {} has no account with a default group; give USER:GROUP", user)
                })?
                .primary_group_id(),
        };
        Ok(Identity { text: text.to_owned(), uid: user.uid, gid })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

as_text!(Identity, "a user, or USER:GROUP, by names or numbers");

/// Refuses -1, which is not a user or group: system calls take it for "leave as it is".
fn possible(id: u32, text: &str) -> Result<u32, String> {
    if id == u32::MAX { Err(format!("{text} is not a user's or group's number")) } else { Ok(id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_by_name_and_number() {
        assert_eq!("root".parse::<User>().unwrap().uid, 0);
        assert_eq!("61001".parse::<User>().unwrap().uid, 61001);
        assert_eq!("root".parse::<Group>().unwrap().gid, 0);
        let identity: Identity = "61001:61002".parse().unwrap();
        assert_eq!((identity.uid, identity.gid), (61001, 61002));
        assert_eq!("root".parse::<Identity>().unwrap().gid, 0);
        for bad in ["", "no-such-user-here", "-1", "4294967295", "4294967296"] {
            assert!(bad.parse::<User>().is_err() && bad.parse::<Group>().is_err(), "{bad:?}");
            assert!(bad.parse::<Identity>().is_err());
        }
        assert!("61001".parse::<Identity>().unwrap_err().contains("USER:GROUP"));
        assert!("61001:".parse::<Identity>().is_err());
    }
}
