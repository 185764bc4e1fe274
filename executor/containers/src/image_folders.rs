//! The folders of an image that its jobs may write to: scratch folders, the home of its user, and its volumes. A look
//! into the image finds what it keeps there, and [`ImageFolders::mounts`] decides what a job gets in each place.
//!
//! An empty folder is covered by a tmpfs with its owner. One that holds anything is laid into the job's folders from
//! the image ([`crate::laid_files`]) and mounted from there, so that nothing of the image disappears and the job may
//! write beside it, within the bound of its disk.
//!
//! The engine's API cannot list the files of an image, only those of a container. So a container is created, never
//! started, and removed again.

use std::collections::{BTreeMap, HashMap};

use bollard::errors::Error as ApiError;
use bollard::models::{ContainerCreateBody, HostConfig};
use bytes::Bytes;

use crate::docker_engine::{ContainerEngine, EngineError, LocalImage};
use crate::image_user::{NamedUser, OwnerIds};
use crate::sandbox::{Root, RunAs, check_volumes, clean, is_kernel_folder, is_system, is_system_folder};

/// Scratch folders, which programs expect to be writable.
const SCRATCH: [&str; 3] = ["/tmp", "/var/tmp", "/run"];
/// Upper bound on the archives of one image that are kept in memory, in bytes. Larger folders are read for each job.
const MAX_KEPT: usize = 128 * 1024;
/// Bytes of an archive that are read at least, for the traits of its folder.
const MIN_READ: usize = 8 * 1024;
/// Upper bound on `/etc/passwd` and `/etc/group` of an image, in bytes.
const MAX_TEXT: usize = 1 << 20;

/// The folders of an image that its jobs may write to, as a look into the image found them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageFolders {
    user: Option<OwnerIds>,
    home: Option<String>,
    contents: BTreeMap<String, FolderContent>,
}

/// The content of an image at one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FolderContent {
    /// Nothing is there.
    Absent,
    /// An empty folder.
    Empty {
        /// Its owner in the image.
        owner: OwnerIds,
        /// Its permission bits.
        mode: u32,
    },
    /// A folder that holds something.
    Filled {
        /// Its owner in the image.
        owner: OwnerIds,
        /// Its archive; `None` for one that is too large to be kept.
        archive: Option<Bytes>,
    },
    /// Something that is mounted over by nothing: no folder, or one that is too large to be copied for a job.
    Uncovered,
}

/// The mount that a job gets at one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderMount {
    /// A tmpfs with this owner and these permission bits.
    Tmpfs {
        /// Its owner in the container.
        owner: OwnerIds,
        /// Its permission bits.
        mode: u32,
    },
    /// The files of the image, laid into the job's folders.
    Laid {
        /// Whether the job may write there.
        writable: bool,
    },
}

/// The folders of an image into which nobody has looked: nothing is in them.
pub static UNSEEN: ImageFolders = ImageFolders {
    user: None,
    home: None,
    contents: BTreeMap::new(),
};

// === impl FolderMount ===

impl FolderMount {
    /// A tmpfs for everybody.
    const SCRATCH: Self = Self::Tmpfs {
        owner: OwnerIds { user: 0, group: 0 },
        mode: 0o1777,
    };
}

// === impl ImageFolders ===

impl ImageFolders {
    /// The folders of an image whose user has this home, with what is at these paths.
    pub fn new(
        user: Option<OwnerIds>,
        home: Option<String>,
        contents: impl IntoIterator<Item = (String, FolderContent)>,
    ) -> Self {
        Self {
            user,
            home,
            contents: contents.into_iter().collect(),
        }
    }

    /// The user that runs the image's program; `None` for one that the image does not know.
    pub fn user(&self) -> Option<OwnerIds> {
        self.user
    }

    /// The content that was found at a path.
    pub fn content(&self, path: &str) -> &FolderContent {
        self.contents.get(path).unwrap_or(&FolderContent::Absent)
    }

    /// The same with the home left as the image has it, because it is too large to be copied for each job.
    #[must_use]
    pub fn without_home(mut self) -> Self {
        if let Some(home) = &self.home {
            self.contents.insert(home.clone(), FolderContent::Uncovered);
        }
        self
    }

    /// Whether a path is the home of the image's user, and neither a scratch folder nor a volume.
    pub fn is_home(&self, image: &LocalImage, path: &str) -> bool {
        self.home.as_deref() == Some(path)
            && !SCRATCH.contains(&path)
            && volumes(image).all(|volume| volume != path)
    }

    /// The mounts of a job of this image, by path.
    pub fn mounts(&self, image: &LocalImage, root: Root, run_as: RunAs) -> BTreeMap<String, FolderMount> {
        let places = SCRATCH.map(str::to_owned).into_iter().chain(self.home_of(run_as));
        let own = places.map(|path| (path, false));
        // Without a mount, a volume that the image declares would be an unbounded folder on the engine's disk.
        let declared = volumes(image).map(|path| (path, true));
        let places: BTreeMap<String, bool> = own.chain(declared).collect();
        places
            .into_iter()
            .filter_map(|(path, is_volume)| {
                let mount = self.mount(&path, is_volume, root, run_as)?;
                Some((path, mount))
            })
            .collect()
    }

    fn home_of(&self, run_as: RunAs) -> Option<String> {
        match run_as {
            RunAs::Image => self.home.clone(),
            // The home belongs to the image's user.
            RunAs::Nobody => None,
        }
    }

    fn mount(&self, path: &str, is_volume: bool, root: Root, run_as: RunAs) -> Option<FolderMount> {
        match self.content(path) {
            FolderContent::Absent => Some(FolderMount::SCRATCH),
            FolderContent::Empty { owner, mode } => Some(FolderMount::Tmpfs {
                owner: match run_as {
                    RunAs::Image => *owner,
                    RunAs::Nobody => OwnerIds::NOBODY,
                },
                mode: *mode,
            }),
            // The layer of the container has the files, and its size is watched.
            FolderContent::Filled { .. } if root == Root::Writable && !is_volume => None,
            FolderContent::Filled { .. } => Some(FolderMount::Laid {
                writable: !is_system_folder(path),
            }),
            // Without a mount the engine would make a folder of its own.
            FolderContent::Uncovered => is_volume.then_some(FolderMount::SCRATCH),
        }
    }
}

/// The paths that an image declares as volumes, as the engine reads them.
fn volumes(image: &LocalImage) -> impl Iterator<Item = String> {
    image.volumes.iter().filter_map(|path| clean(path))
}

/// Looks into an image.
///
/// `name` is the name of the container that is created for it. Its `labels` let a later process find it if this process
/// cannot remove it.
///
/// # Errors
/// The engine failed.
pub async fn look(
    engine: &ContainerEngine,
    image: &LocalImage,
    name: &str,
    labels: HashMap<String, String>,
) -> Result<ImageFolders, EngineError> {
    if check_volumes(image).is_err() {
        // The job ends for it, and the engine would fill a volume of its own.
        return Ok(UNSEEN.clone());
    }
    engine.create(name, look_body(image, labels)).await?;
    let found = find_folders(engine, image, name).await;
    engine.remove(name).await?;
    found
}

/// The container by which an image's files are read. It is never started.
pub(crate) fn look_body(image: &LocalImage, labels: HashMap<String, String>) -> ContainerCreateBody {
    // Without a tmpfs the engine would make the volumes, and copy the image's files into them.
    let volumes = volumes(image).map(|path| (path, String::new()));
    ContainerCreateBody {
        image: Some(image.id.to_string()),
        // An image without a program cannot be turned into a container without a command. The command is never run.
        entrypoint: Some(vec!["look".to_owned()]),
        // The image's own may be none that can be made, which the job's container shows.
        working_dir: Some("/".to_owned()),
        labels: Some(labels),
        network_disabled: Some(true),
        host_config: Some(HostConfig {
            tmpfs: Some(volumes.collect()),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}

async fn find_folders(
    engine: &ContainerEngine,
    image: &LocalImage,
    name: &str,
) -> Result<ImageFolders, EngineError> {
    let named = NamedUser::of(image);
    let passwd = match named.needs_passwd() {
        true => read_text(engine, name, "/etc/passwd").await?,
        false => String::new(),
    };
    let groups = match named.needs_group() {
        true => read_text(engine, name, "/etc/group").await?,
        false => String::new(),
    };
    let user = named.resolve(image, &passwd, &groups);
    let mut folders = ImageFolders::new(user.ids, user.home.clone(), []);
    let places = SCRATCH.map(str::to_owned).into_iter();
    let mut kept = 0;
    for path in places.chain(user.home).chain(volumes(image)) {
        if is_kernel_folder(&path) || folders.contents.contains_key(&path) {
            continue;
        }
        let content = find_content(engine, name, &path, MAX_KEPT.saturating_sub(kept)).await?;
        if let FolderContent::Filled {
            archive: Some(archive),
            ..
        } = &content
        {
            kept += archive.len();
        }
        folders.contents.insert(path, content);
    }
    folders.home = folders
        .home
        .take()
        .filter(|home| folders.may_be_home(home, user.ids));
    Ok(folders)
}

impl ImageFolders {
    /// Whether a job may write to its home: system users have homes such as `/bin`, which belong to root.
    fn may_be_home(&self, home: &str, user: Option<OwnerIds>) -> bool {
        let owner = match self.content(home) {
            FolderContent::Absent | FolderContent::Uncovered => None,
            FolderContent::Empty { owner, .. } | FolderContent::Filled { owner, .. } => Some(owner.user),
        };
        let is_owner = owner.is_some() && owner == user.map(|ids| ids.user);
        !is_system(home) || (is_owner && !is_system_folder(home) && !is_kernel_folder(home))
    }
}

/// The content of a container's image at a path. Of a folder's archive `room` bytes are kept at most.
async fn find_content(
    engine: &ContainerEngine,
    name: &str,
    path: &str,
    room: usize,
) -> Result<FolderContent, EngineError> {
    // The head of an archive is read in any case.
    let room = room.max(MIN_READ);
    let archive = match read_files(engine, name, path, room).await? {
        ImageRead::Found(archive) => archive,
        ImageRead::Absent => return Ok(FolderContent::Absent),
        ImageRead::Refused => return Ok(FolderContent::Uncovered),
    };
    if !is_link(&archive) {
        return Ok(judge(&archive, room));
    }
    // A link to a folder is mounted over at the folder. The engine refuses one that leads to a file.
    Ok(
        match read_files(engine, name, &format!("{path}/."), room).await? {
            ImageRead::Found(archive) => judge(&archive, room),
            ImageRead::Absent => FolderContent::Absent,
            ImageRead::Refused => FolderContent::Uncovered,
        },
    )
}

/// The engine's answer to a request for files of an image.
#[derive(Debug, PartialEq, Eq)]
enum ImageRead {
    Found(Vec<u8>),
    /// There are none.
    Absent,
    /// The engine cannot follow the path, such as one below a file or in a loop of links. The image is judged by the
    /// start of its container, whose answer names the party at fault.
    Refused,
}

async fn read_files(
    engine: &ContainerEngine,
    name: &str,
    path: &str,
    limit: usize,
) -> Result<ImageRead, EngineError> {
    judge_read(engine.read_archive(name, path, limit).await)
}

fn judge_read(read: Result<Option<Vec<u8>>, EngineError>) -> Result<ImageRead, EngineError> {
    match read {
        Ok(Some(archive)) => Ok(ImageRead::Found(archive)),
        Ok(None) => Ok(ImageRead::Absent),
        Err(EngineError::Failed {
            source: ApiError::DockerResponseServerError { .. },
            ..
        }) => Ok(ImageRead::Refused),
        Err(error) => Err(error),
    }
}

/// Judges an archive, of which at least `room` bytes are here if it has as many.
fn judge(archive: &[u8], room: usize) -> FolderContent {
    let whole = archive.len() <= room;
    let mut reader = tar::Archive::new(archive);
    let Ok(mut entries) = reader.entries() else {
        return FolderContent::Uncovered;
    };
    let Some(Ok(top)) = entries.next() else {
        return FolderContent::Uncovered;
    };
    let (true, Some(owner), Ok(mode)) = (
        top.header().entry_type().is_dir(),
        owner_of(top.header()),
        top.header().mode(),
    ) else {
        return FolderContent::Uncovered;
    };
    if whole && entries.next().is_none() {
        return FolderContent::Empty {
            owner,
            mode: mode & 0o7777,
        };
    }
    FolderContent::Filled {
        owner,
        archive: whole.then(|| Bytes::copy_from_slice(archive)),
    }
}

fn is_link(archive: &[u8]) -> bool {
    let mut archive = tar::Archive::new(archive);
    let first = archive
        .entries()
        .ok()
        .and_then(|mut entries| entries.next()?.ok());
    first.is_some_and(|entry| entry.header().entry_type().is_symlink())
}

pub(crate) fn owner_of(header: &tar::Header) -> Option<OwnerIds> {
    let number = |id: std::io::Result<u64>| u32::try_from(id.ok()?).ok();
    Some(OwnerIds {
        user: number(header.uid())?,
        group: number(header.gid())?,
    })
}

/// A text file of a container's image; empty if there is none that can be read.
async fn read_text(engine: &ContainerEngine, name: &str, path: &str) -> Result<String, EngineError> {
    let mut path = path.to_owned();
    // Some images have them elsewhere, as a link shows.
    for _ in 0..4 {
        let archive = match read_files(engine, name, &path, MAX_TEXT).await? {
            ImageRead::Found(archive) => archive,
            ImageRead::Absent | ImageRead::Refused => return Ok(String::new()),
        };
        let mut reader = tar::Archive::new(archive.as_slice());
        let first = reader.entries().ok().and_then(|mut entries| entries.next()?.ok());
        let Some(mut entry) = first else {
            return Ok(String::new());
        };
        if let Ok(Some(link)) = entry.link_name()
            && entry.header().entry_type().is_symlink()
        {
            let above = path.rsplit_once('/').map_or("", |(above, _)| above);
            path = format!("{}", std::path::Path::new(above).join(link).display());
            continue;
        }
        let mut text = Vec::new();
        // A file that is cut short still has the users of its beginning.
        let _ = std::io::Read::read_to_end(&mut entry, &mut text);
        return Ok(String::from_utf8_lossy(&text).into_owned());
    }
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use muster_protocol::{Digest, ImageId};
    use tar::{Builder, EntryType, Header};

    use super::*;

    const APP: OwnerIds = OwnerIds {
        user: 1000,
        group: 1001,
    };

    fn archive(entries: &[(&str, EntryType)]) -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        for (path, kind) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_size(0);
            header.set_mode(0o40_750);
            header.set_uid(1000);
            header.set_gid(1001);
            if kind.is_symlink() {
                header.set_link_name("/elsewhere").unwrap();
            }
            tar.append_data(&mut header, path, std::io::empty()).unwrap();
        }
        tar.into_inner().unwrap()
    }

    fn image(volumes: &[&str]) -> LocalImage {
        LocalImage {
            volumes: volumes.iter().map(|&path| path.to_owned()).collect(),
            ..LocalImage::default_for(ImageId(Digest::of(b"x")))
        }
    }

    fn filled() -> FolderContent {
        FolderContent::Filled {
            owner: APP,
            archive: None,
        }
    }

    fn folders(home: &str, contents: &[(&str, FolderContent)]) -> ImageFolders {
        let contents = contents.iter().cloned();
        let contents = contents.map(|(path, content)| (path.to_owned(), content));
        ImageFolders::new(Some(APP), Some(home.to_owned()), contents)
    }

    #[test]
    fn a_folder_is_empty_only_without_any_entry() {
        let (folder, file, link) = (EntryType::Directory, EntryType::Regular, EntryType::Symlink);
        let empty = FolderContent::Empty {
            owner: APP,
            mode: 0o750,
        };
        assert_eq!(judge(&archive(&[("root/", folder)]), MAX_KEPT), empty);
        for inner in [folder, file, link] {
            let archive = archive(&[("root/", folder), ("root/inner", inner)]);
            let content = judge(&archive, MAX_KEPT);
            assert!(
                matches!(&content, FolderContent::Filled { owner: APP, archive: Some(kept) } if **kept == archive),
                "{content:?}"
            );
            assert_eq!(judge(&archive, archive.len() - 1), filled(), "too large to keep");
        }
        for none in [
            archive(&[("root", file)]),
            archive(&[("root", link)]),
            vec![7; 2_048],
            vec![],
        ] {
            assert_eq!(judge(&none, MAX_KEPT), FolderContent::Uncovered);
        }
        assert!(is_link(&archive(&[("root", link)])) && !is_link(&archive(&[("root", file)])));
    }

    #[test]
    fn a_path_that_the_engine_refuses_is_left_to_the_containers_start_and_a_lost_engine_is_a_failure() {
        let failed = |source| EngineError::Failed {
            operation: "read files of a container",
            source,
        };
        for status_code in [400, 403, 500] {
            let message = "lstat /etc/passwd/x: not a directory".to_owned();
            let refused = failed(ApiError::DockerResponseServerError { status_code, message });
            assert_eq!(judge_read(Err(refused)).unwrap(), ImageRead::Refused);
        }
        assert_eq!(judge_read(Ok(None)).unwrap(), ImageRead::Absent);
        let lost = failed(ApiError::IOError {
            err: std::io::ErrorKind::ConnectionReset.into(),
        });
        assert!(judge_read(Err(lost)).is_err());
    }

    #[test]
    fn a_filled_folder_is_laid_and_an_empty_one_is_a_tmpfs_of_its_owner() {
        let empty = FolderContent::Empty {
            owner: APP,
            mode: 0o700,
        };
        let found = folders(
            "/home/app",
            &[("/home/app", filled()), ("/data", empty), ("/etc", filled())],
        );
        let image = image(&["/data/.", "/etc", "/models"]);
        let mounts = found.mounts(&image, Root::ReadOnly, RunAs::Image);
        let laid = |writable| FolderMount::Laid { writable };
        let tmpfs = |owner, mode| FolderMount::Tmpfs { owner, mode };
        let root = OwnerIds::default();
        let expected = [
            ("/data", tmpfs(APP, 0o700)),
            ("/etc", laid(false)),
            ("/home/app", laid(true)),
            ("/models", tmpfs(root, 0o1777)),
            ("/run", tmpfs(root, 0o1777)),
            ("/tmp", tmpfs(root, 0o1777)),
            ("/var/tmp", tmpfs(root, 0o1777)),
        ];
        let expected: BTreeMap<_, _> = expected.map(|(path, mount)| (path.to_owned(), mount)).into();
        assert_eq!(mounts, expected);
        let writable = found.mounts(&image, Root::Writable, RunAs::Image);
        assert!(
            !writable.contains_key("/home/app"),
            "the container's own layer has it"
        );
        assert_eq!(
            writable["/etc"],
            laid(false),
            "a volume would be the engine's own folder"
        );
        let nobody = found.mounts(&image, Root::ReadOnly, RunAs::Nobody);
        assert!(!nobody.contains_key("/home/app"), "its home is /tmp");
        assert_eq!(nobody["/data"], tmpfs(OwnerIds::NOBODY, 0o700));
    }

    #[test]
    fn a_home_among_the_systems_folders_is_given_to_its_owner_alone() {
        let app = Some(APP);
        for (home, contents, given) in [
            ("/home/app", vec![], true),
            ("/usr/share/search", vec![("/usr/share/search", filled())], true),
            ("/usr/share/search", vec![], false),
            ("/bin", vec![("/bin", filled())], false),
            ("/dev/x", vec![("/dev/x", filled())], false),
        ] {
            assert_eq!(folders(home, &contents).may_be_home(home, app), given, "{home}");
        }
        let others = folders("/usr/sbin", &[("/usr/sbin", filled())]);
        assert!(!others.may_be_home("/usr/sbin", Some(OwnerIds::default())));
        let large = folders("/root", &[("/root", filled())]).without_home();
        let mounts = large.mounts(&image(&[]), Root::ReadOnly, RunAs::Image);
        assert!(
            !mounts.contains_key("/root"),
            "its files are read where the image has them"
        );
    }
}
