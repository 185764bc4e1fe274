//! Wallets made, read and refused.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::keyfile::KeyfileFields;
use super::*;

fn fresh() -> (tempfile::TempDir, WalletPath) {
    let folder = tempfile::tempdir().unwrap();
    let wallet = WalletPath::new(folder.path().join("wallets"), "alice", "one");
    (folder, wallet)
}

#[test]
fn a_created_wallet_is_loaded() {
    let (_folder, wallet) = fresh();
    let made = create(&wallet, ColdkeyStorage::Unencrypted).unwrap();
    assert_eq!(load_hotkey(&wallet).unwrap().hotkey(), made.hotkey.hotkey());
    let coldkey = load_coldkey(&wallet).unwrap();
    assert_eq!(coldkey.hotkey(), made.coldkey);
    let phrase = made.coldkey_phrase.unwrap();
    assert_eq!(Keypair::from_phrase(&phrase).unwrap().hotkey(), made.coldkey);
    let shown = read_public_keys(&wallet).unwrap();
    assert_eq!(
        (shown.hotkey, shown.coldkey),
        (made.hotkey.hotkey(), Some(made.coldkey))
    );
}

#[test]
fn files_are_private_whole_and_alone() {
    let (_folder, wallet) = fresh();
    create(&wallet, ColdkeyStorage::Unencrypted).unwrap();
    let files = [
        wallet.hotkey_file(),
        wallet.hotkeypub_file(),
        wallet.coldkey_file(),
        wallet.coldkeypub_file(),
    ];
    for file in files {
        let mode = fs::metadata(file.unwrap()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let hotkeys = wallet.hotkey_file().unwrap();
    let hotkeys = hotkeys.parent().unwrap();
    assert_eq!(fs::read_dir(hotkeys).unwrap().count(), 2);
    assert_eq!(fs::read_dir(hotkeys.parent().unwrap()).unwrap().count(), 3);
}

#[test]
fn nothing_is_overwritten() {
    let (_folder, wallet) = fresh();
    let first = create(&wallet, ColdkeyStorage::PhraseOnly).unwrap();
    assert!(matches!(
        create(&wallet, ColdkeyStorage::Unencrypted),
        Err(WalletError::Exists(_))
    ));
    assert_eq!(load_hotkey(&wallet).unwrap().hotkey(), first.hotkey.hotkey());
    assert!(matches!(load_coldkey(&wallet), Err(WalletError::Missing(_))));

    let second = WalletPath {
        hotkey: "two".to_owned(),
        ..wallet
    };
    let made = create(&second, ColdkeyStorage::Unencrypted).unwrap();
    assert_eq!((made.coldkey, made.coldkey_phrase), (first.coldkey, None));
}

#[test]
fn a_coldkey_without_its_public_half_is_left_alone() {
    let (_folder, wallet) = fresh();
    let file = wallet.coldkey_file().unwrap();
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "$NACL…").unwrap();
    assert!(matches!(
        create(&wallet, ColdkeyStorage::PhraseOnly),
        Err(WalletError::Exists(_))
    ));
    assert!(matches!(load_coldkey(&wallet), Err(WalletError::Encrypted(_))));
    assert!(!wallet.hotkey_file().unwrap().exists());
}

#[test]
fn names_stay_in_their_folder() {
    for bad in ["", ".", "..", "../bob", "a/b", "/etc/passwd", "a/"] {
        let wallet = WalletPath::new("/w", "alice", bad);
        assert!(
            matches!(wallet.hotkey_file(), Err(WalletError::Name(_))),
            "{bad:?}"
        );
        let wallet = WalletPath::new("/w", bad, "one");
        assert!(
            matches!(wallet.coldkeypub_file(), Err(WalletError::Name(_))),
            "{bad:?}"
        );
    }
    let wallet = WalletPath::new("~/w", "alice", "one");
    assert!(wallet.hotkey_file().unwrap().is_absolute());
}

fn loaded(text: &str) -> Result<Keypair, WalletError> {
    let (_folder, wallet) = fresh();
    let file = wallet.hotkey_file().unwrap();
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, text).unwrap();
    load_hotkey(&wallet)
}

#[test]
fn any_one_form_of_the_secret_is_enough() {
    let (pair, phrase, seed) = Keypair::generate_with_seed();
    let expanded = hex::encode(pair.expanded());
    for text in [
        format!(r#"{{"secretSeed": "0x{}"}}"#, hex::encode(seed)),
        format!(r#"{{"secretSeed": null, "secretPhrase": "{phrase}", "cryptoType": 1}}"#),
        format!(
            r#"{{"privateKey": "{expanded}", "ss58Address": "{}"}}"#,
            pair.hotkey()
        ),
    ] {
        assert_eq!(loaded(&text).unwrap().hotkey(), pair.hotkey(), "{text}");
    }
}

/// Written by bittensor 11.3.0 for the seed 0x0707….
const OFFICIAL: &str = r#"{"accountId":"0x7c0f469d3bd340bae718203fa30ca071a5e37c751e891dbded837b213d45d91d",
"secretSeed":"0x0707070707070707070707070707070707070707070707070707070707070707","cryptoType":1,
"privateKey":"0xa535c7bfff6f541c20d5d8c4bd3ed35ca3a5800b091545d1c98f69493907050f9c7d6db3506d65dbac7c052aaee4857425210c9bc54030c826e54055983452a5",
"ss58Address":"5EsNLFaGe9XK5LzWH3i6eC2Wqv6YqZS1442N1C4yeSdP6uxy",
"publicKey":"0x7c0f469d3bd340bae718203fa30ca071a5e37c751e891dbded837b213d45d91d"}"#;

#[test]
fn the_official_wallets_file_is_ours_field_by_field() {
    let pair = loaded(OFFICIAL).unwrap();
    let mut theirs: serde_json::Value = serde_json::from_str(OFFICIAL).unwrap();
    theirs["secretPhrase"] = "phrase".into();
    let ours = serde_json::to_value(KeyfileFields::secret(&pair, "phrase".to_owned(), [7; 32])).unwrap();
    assert_eq!(ours, theirs);
    theirs.as_object_mut().unwrap().remove("secretSeed");
    theirs.as_object_mut().unwrap().remove("secretPhrase");
    assert_eq!(loaded(&theirs.to_string()).unwrap().hotkey(), pair.hotkey());
}

#[test]
fn bad_files_are_named_and_no_secret_is_told() {
    use WalletError as E;
    let secret = "0x0123456789abcdef";
    let with = |rest: &str| format!(r#"{{"secretSeed": "0x{}"{rest}}}"#, "07".repeat(32));
    let alice = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
    type Expected = fn(&WalletError) -> bool;
    let cases: [(String, Expected); 8] = [
        (String::new(), |e| matches!(e, E::Malformed { .. })),
        ("[]".to_owned(), |e| matches!(e, E::Malformed { .. })),
        ("{}".to_owned(), |e| matches!(e, E::Malformed { .. })),
        (format!(r#"{{"secretSeed": "{secret}"}}"#), |e| {
            matches!(e, E::Malformed { .. })
        }),
        (format!(r#"{{"secretPhrase": "{secret}"}}"#), |e| {
            matches!(e, E::Secret { .. })
        }),
        (with(r#", "cryptoType": 0"#), |e| {
            matches!(e, E::KeyType { kind: 0, .. })
        }),
        (with(&format!(r#", "ss58Address": "{alice}""#)), |e| {
            matches!(e, E::Mismatch { .. })
        }),
        ("$ANSIBLE_VAULT;1.1".to_owned(), |e| matches!(e, E::Encrypted(_))),
    ];
    for (text, expected) in cases {
        let error = loaded(&text).unwrap_err();
        assert!(expected(&error), "{text}: {error:?}");
        assert!(
            !format!("{error} {error:?}").contains("0123456789abcdef"),
            "{error:?}"
        );
    }
}

proptest::proptest! {
    #[test]
    fn any_file_is_read_or_refused(text: String, seed in "[0-9a-fx]{0,66}", kind: u8) {
        let _ = loaded(&text);
        let _ = loaded(&format!(r#"{{"secretSeed": "{seed}", "cryptoType": {kind}}}"#));
        let _ = loaded(&format!(r#"{{"privateKey": "{seed}{seed}", "publicKey": "{seed}"}}"#));
    }
}
