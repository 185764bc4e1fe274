//! Ordinary archives arrive whole; malicious ones leave no files.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::LazyLock;

use muster_process::{Coded, SystemClock};
use muster_protocol::ErrorCode;
use muster_protocol::volume::MultiVolume;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;
use crate::mutation::Mutator;

const LIMITS: UnpackLimits = UnpackLimits {
    bytes: 1 << 20,
    entries: 100,
};

fn zipped(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, contents) in entries {
        if let Some(folder) = name.strip_suffix('/') {
            zip.add_directory(folder, SimpleFileOptions::default()).unwrap();
        } else {
            zip.start_file(*name, SimpleFileOptions::default()).unwrap();
            zip.write_all(contents).unwrap();
        }
    }
    zip.finish().unwrap().into_inner()
}

/// Changes a name in the bytes of a harmless archive, because a writer might correct a malicious name.
fn renamed(harmless: &str, hostile: &str) -> Vec<u8> {
    assert_eq!(harmless.len(), hostile.len());
    let mut bytes = zipped(&[(harmless, b"x")]);
    let at: Vec<_> = bytes
        .windows(harmless.len())
        .enumerate()
        .filter(|(_, window)| *window == harmless.as_bytes())
        .map(|(at, _)| at)
        .collect();
    assert_eq!(at.len(), 2, "local and central header");
    for at in at {
        bytes[at..at + hostile.len()].copy_from_slice(hostile.as_bytes());
    }
    bytes
}

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| tokio::runtime::Runtime::new().unwrap());

/// Puts parts in place, as a job's executor does.
fn place(
    parts: &[VolumePart],
    target: &Path,
    limits: UnpackLimits,
    called_off: &CancellationToken,
) -> Result<(), VolumeError> {
    let fetcher = Fetcher::new(Settings::default(), Arc::new(SystemClock::default())).unwrap();
    RUNTIME.block_on(fetcher.place(parts.to_vec(), target, limits, called_off))
}

fn inline(zip: &[u8], relative_path: Option<&str>) -> VolumePart {
    VolumePart::Inline(InlineVolume {
        contents: STANDARD.encode(zip),
        relative_path: relative_path.map(str::to_owned),
    })
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let entry = entry.unwrap();
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                folders.push(path);
            } else {
                assert!(kind.is_file(), "{} is no regular file", path.display());
                found.insert(
                    path.strip_prefix(folder).unwrap().display().to_string(),
                    fs::read(&path).unwrap(),
                );
            }
        }
    }
    found
}

/// Unpacks and returns the files; checks that a refused archive leaves none.
fn unpack(parts: &[VolumePart]) -> Result<BTreeMap<String, Vec<u8>>, VolumeError> {
    unpack_within(parts, LIMITS)
}

fn unpack_within(
    parts: &[VolumePart],
    limits: UnpackLimits,
) -> Result<BTreeMap<String, Vec<u8>>, VolumeError> {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("deep/er/volume");
    fs::create_dir_all(target.parent().unwrap()).unwrap();
    let outcome = place(parts, &target, limits, &CancellationToken::new());
    match outcome {
        Ok(()) => {
            let placed = files(&target);
            fs::remove_dir_all(&target).unwrap();
            assert!(files(root.path()).is_empty(), "something lies outside");
            Ok(placed)
        }
        Err(error) => {
            assert!(!target.exists(), "{error}");
            assert!(files(root.path()).is_empty(), "{error}");
            Err(error)
        }
    }
}

#[test]
fn an_ordinary_archive_arrives_whole() {
    let zip = zipped(&[
        ("a.txt", b"A"),
        ("folder/", b""),
        ("folder/sub/b", b"B"),
        ("empty", b""),
    ]);
    let files = unpack(&[inline(&zip, None)]).unwrap();
    let expected = [("a.txt", "A"), ("empty", ""), ("folder/sub/b", "B")];
    assert_eq!(
        files,
        expected
            .map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()))
            .into()
    );
}

#[test]
fn several_volumes_share_one_folder_and_the_later_wins() {
    let first = zipped(&[("a", b"1"), ("sub/b", b"1")]);
    let second = zipped(&[("b", b"2")]);
    let volume = Volume::MultiVolume(MultiVolume {
        volumes: vec![inline(&first, None), inline(&second, Some("sub/"))],
    });
    let files = unpack(&merge_volumes(Some(volume), None).unwrap()).unwrap();
    assert_eq!(files["sub/b"], b"2");
    assert_eq!(files.len(), 2);
    assert_eq!(unpack(&[]).unwrap().len(), 0);
}

#[test]
fn programs_stay_programs_and_everyone_may_read() {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file("bin/run", SimpleFileOptions::default().unix_permissions(0o4700))
        .unwrap();
    zip.start_file("data", SimpleFileOptions::default().unix_permissions(0o600))
        .unwrap();
    let zip = zip.finish().unwrap().into_inner();
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("volume");
    place(&[inline(&zip, None)], &target, LIMITS, &CancellationToken::new()).unwrap();
    let mode = |path: &str| fs::metadata(target.join(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(
        (mode("bin/run"), mode("data"), mode("bin"), mode("")),
        (0o755, 0o644, 0o755, 0o755)
    );
}

#[test]
fn names_that_leave_the_folder_are_refused() {
    for (harmless, hostile) in [
        ("aa_bbbb", "../bbbb"),
        ("aaaa_bb_cc", "aaaa/../cc"),
        ("_etc_x", "/etc/x"),
        ("aa_b", "aa/."),
        ("aa__b", "aa//b"),
        ("aa_bb", "aa\\bb"),
        ("aa_bb", "aa\0bb"),
        ("_.aa", "./aa"),
    ] {
        let error = unpack(&[inline(&renamed(harmless, hostile), None)]).unwrap_err();
        assert!(
            matches!(error, VolumeError::Name { .. }),
            "{hostile:?}: {error:?}"
        );
        assert_eq!(error.code(), Some(ErrorCode::VolumeRefused));
    }
}

#[test]
fn long_and_deep_names_are_refused() {
    for name in [
        "x".repeat(256),
        "y/".repeat(100) + "z",
        vec!["w".repeat(200); 6].join("/"),
    ] {
        let error = unpack(&[inline(&zipped(&[(&name, b"")]), None)]).unwrap_err();
        assert!(matches!(error, VolumeError::Name { .. }), "{error:?}");
    }
}

#[test]
fn the_place_of_a_volume_is_checked_like_an_entry() {
    let zip = zipped(&[("a", b"")]);
    for bad in ["..", "/etc", "a/../..", "a\\b", "a//b"] {
        let error = unpack(&[inline(&zip, Some(bad))]).unwrap_err();
        assert!(matches!(error, VolumeError::Name { .. }), "{bad}: {error:?}");
    }
}

#[test]
fn links_and_special_files_are_refused() {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.add_symlink("link", "/etc/passwd", SimpleFileOptions::default())
        .unwrap();
    let link = zip.finish().unwrap().into_inner();
    assert!(matches!(
        unpack(&[inline(&link, None)]),
        Err(VolumeError::Name { .. })
    ));
    // The same archive with the kind changed into a fifo, a character device, a block device and a socket.
    let link_mode = (0o120_777_u32 << 16).to_le_bytes();
    let at = link.windows(4).position(|window| window == link_mode).unwrap();
    for kind in [0o010_000_u32, 0o020_000, 0o060_000, 0o140_000, 0o040_000] {
        let mut special = link.clone();
        special[at..at + 4].copy_from_slice(&((kind | 0o644) << 16).to_le_bytes());
        assert!(
            matches!(unpack(&[inline(&special, None)]), Err(VolumeError::Name { .. })),
            "{kind:o}"
        );
    }
}

#[test]
fn a_file_and_a_folder_of_one_name_are_refused() {
    for entries in [[("a", &b"1"[..]), ("a/b", b"2")], [("a/b", b"1"), ("a", b"2")]] {
        let error = unpack(&[inline(&zipped(&entries), None)]).unwrap_err();
        assert!(matches!(error, VolumeError::Name { .. }), "{error:?}");
    }
}

#[test]
fn a_bomb_is_counted_as_it_unpacks() {
    let bomb = zipped(&[("zeros", &vec![0; 4 << 20])]);
    assert!(bomb.len() < 10_000);
    assert!(matches!(
        unpack(&[inline(&bomb, None)]),
        Err(VolumeError::TooLarge { limit: 1_048_576, .. })
    ));
    // A false size in both headers does not help.
    let mut lying = bomb.clone();
    let size = (4_u32 << 20).to_le_bytes();
    let places: Vec<_> = bomb
        .windows(4)
        .enumerate()
        .filter(|(_, w)| *w == size)
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty());
    for at in places {
        lying[at..at + 4].copy_from_slice(&1_u32.to_le_bytes());
    }
    unpack(&[inline(&lying, None)]).unwrap_err();
    // The bound holds over all volumes together.
    let half = inline(&zipped(&[("half", &vec![0; 600 << 10])]), None);
    unpack(std::slice::from_ref(&half)).unwrap();
    assert!(matches!(
        unpack(&[half.clone(), half]),
        Err(VolumeError::TooLarge { index: 1, .. })
    ));
}

#[test]
fn too_many_entries_are_refused_before_any_is_made() {
    let names: Vec<String> = (0..60).map(|number| format!("f{number}")).collect();
    let entries: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    let part = inline(&zipped(&entries), None);
    unpack(std::slice::from_ref(&part)).unwrap();
    assert!(matches!(
        unpack(&[part.clone(), part]),
        Err(VolumeError::TooMany { index: 1, limit: 100 })
    ));
}

#[test]
fn malformed_archives_are_refused() {
    let not_base64 = VolumePart::Inline(InlineVolume {
        contents: "%%%".into(),
        relative_path: None,
    });
    assert!(matches!(unpack(&[not_base64]), Err(VolumeError::Base64 { .. })));
    let good = zipped(&[("a", &[7; 5_000]), ("b", b"x")]);
    for bytes in [
        &b""[..],
        b"hello",
        &good[..good.len() - 10],
        &good[..good.len() / 2],
    ] {
        assert!(matches!(
            unpack(&[inline(bytes, None)]),
            Err(VolumeError::Zip { .. })
        ));
    }
    // Any single damaged byte gives a clear error or the right content, never a panic or a file outside.
    for at in 0..good.len() {
        let mut damaged = good.clone();
        damaged[at] ^= 0xFF;
        let _ = unpack(&[inline(&damaged, None)]);
    }
}

#[test]
fn base64_may_be_wrapped() {
    let mut text = STANDARD.encode(zipped(&[("a", b"A")]));
    text.insert(10, '\n');
    let part = VolumePart::Inline(InlineVolume {
        contents: text,
        relative_path: Some(String::new()),
    });
    assert_eq!(unpack(&[part]).unwrap()["a"], b"A");
}

#[test]
fn a_name_that_stands_twice_in_an_archive_is_refused() {
    let mut bytes = zipped(&[("aa", b"1"), ("ab", b"2")]);
    for at in 0..bytes.len() - 1 {
        if &bytes[at..at + 2] == b"ab" {
            bytes[at..at + 2].copy_from_slice(b"aa");
        }
    }
    let error = unpack(&[inline(&bytes, None)]).unwrap_err();
    assert!(matches!(error, VolumeError::Hostile { .. }), "{error:?}");
}

#[test]
fn an_archive_that_packs_too_well_is_refused_even_where_there_is_room() {
    let zeros = vec![0; 70 << 20];
    let limits = UnpackLimits {
        bytes: 1 << 30,
        entries: 10,
    };
    let error = unpack_within(&[inline(&zipped(&[("zeros", &zeros)]), None)], limits).unwrap_err();
    assert!(matches!(error, VolumeError::Hostile { .. }), "{error:?}");
}

#[test]
fn a_volume_sent_twice_is_refused() {
    let volume = || {
        Some(Volume::Inline(InlineVolume {
            contents: String::new(),
            relative_path: None,
        }))
    };
    assert!(matches!(
        merge_volumes(volume(), volume()),
        Err(VolumeError::Twice)
    ));
    assert_eq!(merge_volumes(None, volume()).unwrap().len(), 1);
    assert_eq!(merge_volumes(None, None).unwrap().len(), 0);
}

#[test]
fn unpacking_can_be_called_off() {
    let called_off = CancellationToken::new();
    called_off.cancel();
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("volume");
    let part = inline(&zipped(&[("a", b"A")]), None);
    assert!(matches!(
        place(&[part], &target, LIMITS, &called_off),
        Err(VolumeError::CalledOff)
    ));
    assert!(!target.exists());
}

#[test]
fn damaged_archives_are_unpacked_inside_or_refused_without_a_trace() {
    let mut linked = ZipWriter::new(Cursor::new(Vec::new()));
    linked
        .add_symlink("a", "/tmp", SimpleFileOptions::default())
        .unwrap();
    linked
        .start_file("a/b", SimpleFileOptions::default().unix_permissions(0o4777))
        .unwrap();
    let mut stored = ZipWriter::new(Cursor::new(Vec::new()));
    let plain = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    stored.start_file("stored/file", plain).unwrap();
    stored.write_all(b"as it is").unwrap();
    stored.set_comment("a comment").unwrap();
    let samples = [
        zipped(&[
            ("a.txt", b"A"),
            ("folder/", b""),
            ("folder/sub/b", &[7; 3_000]),
            ("empty", b""),
        ]),
        zipped(&[("zeros", &[0; 100_000])]),
        renamed("aa_bb_cccc", "../../cccc"),
        renamed("_tmp_x", "/tmp/x"),
        linked.finish().unwrap().into_inner(),
        stored.finish().unwrap().into_inner(),
    ];
    let mut mutator = Mutator::seeded(1);
    let mut whole = 0;
    for _ in 0..1_500 {
        let bytes = mutator.next_from(&samples);
        whole += usize::from(unpack(&[inline(&bytes, None)]).is_ok());
    }
    assert!(
        (1..1_500).contains(&whole),
        "{whole}: the damage is of one kind only"
    );
}
