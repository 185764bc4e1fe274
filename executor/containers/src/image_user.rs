//! The user that runs an image's program, as `/etc/passwd` and `/etc/group` of the image describe it.
//!
//! The rules are those by which runc starts a program: a name or a number, a group beside it or the user's own, and a
//! home that is the variable `HOME` of the image or the user's entry.

use crate::docker_engine::LocalImage;
use crate::sandbox::is_too_long;

/// A user and a group by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerIds {
    /// The user's number.
    pub user: u32,
    /// The group's number.
    pub group: u32,
}

/// The user and group that an image names, before its files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedUser<'a> {
    user: &'a str,
    group: Option<&'a str>,
}

/// The user of an image, with its home.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageUser {
    /// `None` for a name that the image does not know; the engine refuses to start such an image.
    pub(crate) ids: Option<OwnerIds>,
    /// The home folder; `None` for a user without one.
    pub(crate) home: Option<String>,
}

// === impl OwnerIds ===

impl OwnerIds {
    /// The user and group of whitelisted images, which own nothing on the machine.
    pub const NOBODY: Self = Self {
        user: 65_532,
        group: 65_532,
    };

    /// The ids on the machine of an engine that begins its users at `first`; `None` if there are no such numbers.
    pub fn shifted(self, first: Self) -> Option<Self> {
        Some(Self {
            user: self.user.checked_add(first.user)?,
            group: self.group.checked_add(first.group)?,
        })
    }
}

// === impl NamedUser ===

impl<'a> NamedUser<'a> {
    pub(crate) fn of(image: &'a LocalImage) -> Self {
        let (user, group) = match image.user.split_once(':') {
            Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
            None => (image.user.as_str(), None),
        };
        let user = if user.is_empty() { "0" } else { user };
        Self { user, group }
    }

    fn is_root(self) -> bool {
        matches!(self.user, "0" | "root")
    }

    /// Whether `/etc/passwd` of the image has to be read.
    pub(crate) fn needs_passwd(self) -> bool {
        !self.is_root()
    }

    /// Whether `/etc/group` of the image has to be read.
    pub(crate) fn needs_group(self) -> bool {
        self.group.is_some_and(|group| group.parse::<u32>().is_err())
    }

    /// The user by the texts of the image's files, which are empty for files that it does not have.
    pub(crate) fn resolve(self, image: &LocalImage, passwd: &str, groups: &str) -> ImageUser {
        let entry = passwd.lines().filter_map(PasswdEntry::parse).find(|entry| {
            let by_number = self.user.parse() == Ok(entry.ids.user);
            entry.name == self.user || by_number
        });
        let ids = match (&entry, self.user.parse(), self.is_root()) {
            (Some(entry), _, _) => Some(entry.ids),
            (None, Ok(user), _) => Some(OwnerIds { user, group: 0 }),
            (None, Err(_), true) => Some(OwnerIds::default()),
            (None, Err(_), false) => None,
        };
        let ids = ids.and_then(|ids| match self.group {
            None => Some(ids),
            Some(name) => find_group(name, groups).map(|group| OwnerIds { group, ..ids }),
        });
        let declared = image
            .environment
            .iter()
            .find_map(|line| line.strip_prefix("HOME="));
        let home = match (declared, &entry, self.is_root()) {
            (Some(home), _, _) => Some(home),
            (None, Some(entry), _) => Some(entry.home),
            (None, None, true) => Some("/root"),
            (None, None, false) => None,
        };
        ImageUser {
            ids,
            home: home.and_then(plain_folder),
        }
    }
}

/// A line of `/etc/passwd`.
struct PasswdEntry<'a> {
    name: &'a str,
    ids: OwnerIds,
    home: &'a str,
}

impl<'a> PasswdEntry<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.trim_end_matches('\r').split(':');
        let name = fields.next()?;
        let user = fields.nth(1)?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let home = fields.nth(1).unwrap_or_default();
        Some(Self {
            name,
            ids: OwnerIds { user, group },
            home,
        })
    }
}

/// The number of a group that is given by number or by name.
fn find_group(name: &str, groups: &str) -> Option<u32> {
    let by_name = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let number = (fields.next()? == name).then(|| fields.nth(1)).flatten()?;
        number.trim().parse().ok()
    });
    by_name.or_else(|| name.parse().ok())
}

/// A path without a slash at its end; `None` for the root, a relative path, one with `.` or `..`, and one that no file
/// system has.
fn plain_folder(path: &str) -> Option<String> {
    let path = path.trim_end_matches('/');
    if is_too_long(path) {
        return None;
    }
    let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    path.strip_prefix('/')?
        .split('/')
        .all(plain)
        .then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use muster_protocol::{Digest, ImageId};

    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\nodd\n\
        www-data:x:33:33::/var/www/:/bin/sh\nrelative:x:7:7::home:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nstaff:x:50:app\n";

    fn resolve(user: &str, environment: &[&str], passwd: &str) -> (Option<(u32, u32)>, Option<String>) {
        let image = LocalImage {
            user: user.to_owned(),
            environment: environment.iter().map(|&line| line.to_owned()).collect(),
            ..LocalImage::default_for(ImageId(Digest::of(b"x")))
        };
        let user = NamedUser::of(&image).resolve(&image, passwd, GROUP);
        (user.ids.map(|ids| (ids.user, ids.group)), user.home)
    }

    #[test]
    fn the_user_of_an_image_and_its_home_are_those_of_its_passwd() {
        let home = |path: &str| Some(path.to_owned());
        for (user, ids, folder) in [
            ("", Some((0, 0)), home("/root")),
            ("root", Some((0, 0)), home("/root")),
            ("app", Some((1000, 1001)), home("/home/app")),
            ("1000", Some((1000, 1001)), home("/home/app")),
            ("1000:50", Some((1000, 50)), home("/home/app")),
            ("app:staff", Some((1000, 50)), home("/home/app")),
            ("app:", Some((1000, 1001)), home("/home/app")),
            (":staff", Some((0, 50)), home("/root")),
            ("www-data", Some((33, 33)), home("/var/www")),
            ("4242", Some((4242, 0)), None),
            ("relative", Some((7, 7)), None),
            ("nobody-knows", None, None),
            ("app:nothing", None, home("/home/app")),
        ] {
            assert_eq!(resolve(user, &[], PASSWD), (ids, folder), "{user:?}");
        }
        assert_eq!(resolve("", &[], ""), (Some((0, 0)), home("/root")));
        assert_eq!(resolve("app", &["A=b", "HOME=/srv/x/"], PASSWD).1, home("/srv/x"));
        for none in ["HOME=/", "HOME=x", "HOME=/a/../b", "HOME="] {
            assert_eq!(resolve("", &[none], PASSWD).1, None, "{none}");
        }
        let named = |length| format!("HOME=/srv/{}", "x".repeat(length));
        assert!(resolve("", &[named(255).as_str()], PASSWD).1.is_some());
        assert_eq!(resolve("", &[named(256).as_str()], PASSWD).1, None);
        let deep = format!("HOME={}", "/xy".repeat(1_366));
        assert_eq!(resolve("", &[deep.as_str()], PASSWD).1, None);
    }

    #[test]
    fn files_of_an_image_are_read_for_users_that_need_them_alone() {
        let needs = |user: &str| {
            let image = LocalImage {
                user: user.to_owned(),
                ..LocalImage::default_for(ImageId(Digest::of(b"x")))
            };
            let named = NamedUser::of(&image);
            (named.needs_passwd(), named.needs_group())
        };
        assert_eq!(needs(""), (false, false));
        assert_eq!(needs("root:staff"), (false, true));
        assert_eq!(needs("1000:5"), (true, false));
        assert_eq!(needs("app"), (true, false));
    }
}
