//! Wallets made here load in the official Python package, and the reverse.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

use std::path::Path;
use std::process::Command;

use muster_identity::wallet::{
    ColdkeyStorage, WalletError, WalletPath, create, load_coldkey, load_hotkey, read_public_keys,
};
use muster_identity::{Domain, SigningMessage, verify};
use muster_protocol::{Hotkey, Signature};

/// A Python with `bittensor` installed. `cargo xtask test` sets it.
const PYTHON: &str = "MUSTER_TEST_BITTENSOR_PYTHON";

/// Runs `script` with `arguments` in `home`; its lines.
fn python(home: &Path, script: &str, arguments: &[&str]) -> Vec<String> {
    let python = std::env::var(PYTHON)
        .expect("this test needs MUSTER_TEST_BITTENSOR_PYTHON, which `cargo xtask test` sets");
    // The package keeps caches in the home directory and reads its own options from the arguments.
    let ran = Command::new(python)
        .args(["-c", script])
        .args(arguments)
        .env("HOME", home)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let printed = String::from_utf8(ran.stdout).unwrap();
    printed.lines().map(str::to_owned).collect()
}

#[test]
fn ours_load_in_the_official_wallet_and_sign_there() {
    let home = tempfile::tempdir().unwrap();
    let wallet = WalletPath::new(home.path().join("wallets"), "muster", "hot");
    let made = create(&wallet, ColdkeyStorage::Unencrypted).unwrap();
    let script = r#"
import sys
from bittensor.wallet import Wallet
w = Wallet(name="muster", hotkey="hot", path=sys.argv[1])
for key in (w.hotkey, w.coldkey, w.coldkeypub, w.hotkeypub):
    print(key.ss58_address)
print(bytes(w.hotkey.sign(b"hello")).hex())
print(w.hotkeypub.verify(b"muster/test/1", bytes.fromhex(sys.argv[2])))
"#;
    const TAG: Domain = Domain::new("muster/test/1");
    let ours = made.hotkey.sign(&SigningMessage::tagged(TAG, b"")).to_bare_hex();
    let lines = python(home.path(), script, &[wallet.root.to_str().unwrap(), &ours]);
    let (hot, cold) = (made.hotkey.hotkey().to_string(), made.coldkey.to_string());
    assert_eq!(lines[..4], [hot.clone(), cold.clone(), cold, hot]);
    let theirs = Signature::from_hex(&lines[4]).unwrap();
    assert!(verify(&made.hotkey.hotkey(), b"hello", &theirs));
    assert_eq!(lines[5], "True");
}

#[test]
fn the_official_wallets_load_here() {
    let home = tempfile::tempdir().unwrap();
    let script = r#"
import sys
from bittensor.wallet import Wallet
plain = Wallet(name="plain", hotkey="hot", path=sys.argv[1])
plain.create_new_coldkey(use_password=False, suppress=True)
plain.create_new_hotkey(suppress=True)
locked = Wallet(name="locked", hotkey="hot", path=sys.argv[1])
locked.create_new_coldkey(coldkey_password="secret", suppress=True)
locked.create_new_hotkey(suppress=True)
seeded = Wallet(name="seeded", hotkey="hot", path=sys.argv[1])
seeded.regenerate_hotkey(seed="0x" + "07" * 32, suppress=True)
for key in (plain.hotkey, plain.coldkey, locked.hotkey, locked.coldkeypub, seeded.hotkey):
    print(key.ss58_address)
"#;
    let root = home.path().join("wallets");
    let lines = python(home.path(), script, &[root.to_str().unwrap()]);
    let theirs: Vec<Hotkey> = lines.iter().map(|line| line.parse().unwrap()).collect();
    let wallet = |name| WalletPath::new(&root, name, "hot");
    assert_eq!(load_hotkey(&wallet("plain")).unwrap().hotkey(), theirs[0]);
    assert_eq!(load_coldkey(&wallet("plain")).unwrap().hotkey(), theirs[1]);
    let shown = read_public_keys(&wallet("locked")).unwrap();
    assert_eq!((shown.hotkey, shown.coldkey), (theirs[2], Some(theirs[3])));
    assert!(matches!(
        load_coldkey(&wallet("locked")),
        Err(WalletError::Encrypted(_))
    ));
    assert_eq!(load_hotkey(&wallet("seeded")).unwrap().hotkey(), theirs[4]);
    assert_eq!(read_public_keys(&wallet("seeded")).unwrap().coldkey, None);
}
