//! Facts of the public beacon, for tests.

/// Reads hexadecimal text.
pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.trim().chars().collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// The public key of drand's quicknet.
pub(crate) fn quicknet_key() -> Vec<u8> {
    bytes(
        "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d106451\
         0d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a",
    )
}

/// The signature of quicknet's round 1000.
pub(crate) fn quicknet_round_1000() -> Vec<u8> {
    bytes("b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39")
}
