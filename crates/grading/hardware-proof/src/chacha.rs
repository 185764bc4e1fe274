//! ChaCha8, the only pseudorandom function of this crate. Keyed streams fill matrices and draws; the permutation
//! computes labels and walks.
//!
//! The layout is Bernstein's: four constants, eight key words, a 64-bit block counter, a 64-bit stream number. This
//! file is the reference; `simd` computes the same for many blocks at once.

/// Bytes of one block.
pub const BLOCK: usize = 64;

/// The sixteen words of the cipher's state.
pub type ChaChaState = [u32; 16];

/// A 256-bit key, made by [`crate::challenge_keys::derive_key`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub [u8; 32]);

/// "expand 32-byte k".
const SIGMA: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// The state before the rounds for block `counter` of stream `stream`.
pub fn initial_state(key: &Key, counter: u64, stream: u64) -> ChaChaState {
    let mut state = [0; 16];
    let (words, _) = key.0.as_chunks::<4>();
    let key_words = words.iter().map(|word| u32::from_le_bytes(*word));
    let tail = [
        counter as u32,
        (counter >> 32) as u32,
        stream as u32,
        (stream >> 32) as u32,
    ];
    for (place, word) in state
        .iter_mut()
        .zip(SIGMA.into_iter().chain(key_words).chain(tail))
    {
        *place = word;
    }
    state
}

fn quarter(a: &mut u32, b: &mut u32, c: &mut u32, d: &mut u32) {
    *a = a.wrapping_add(*b);
    *d = (*d ^ *a).rotate_left(16);
    *c = c.wrapping_add(*d);
    *b = (*b ^ *c).rotate_left(12);
    *a = a.wrapping_add(*b);
    *d = (*d ^ *a).rotate_left(8);
    *c = c.wrapping_add(*d);
    *b = (*b ^ *c).rotate_left(7);
}

/// One round down the columns.
pub fn column_round(state: &mut ChaChaState) {
    let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3] = state;
    quarter(a0, b0, c0, d0);
    quarter(a1, b1, c1, d1);
    quarter(a2, b2, c2, d2);
    quarter(a3, b3, c3, d3);
}

/// One round down the diagonals.
pub fn diagonal_round(state: &mut ChaChaState) {
    let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3] = state;
    quarter(a0, b1, c2, d3);
    quarter(a1, b2, c3, d0);
    quarter(a2, b3, c0, d1);
    quarter(a3, b0, c1, d2);
}

/// Replaces the state by `state + permutation(state)`, word by word. The addition makes the eight rounds one-way.
pub fn apply_block_function(state: &mut ChaChaState) {
    let before = *state;
    for _ in 0..4 {
        column_round(state);
        diagonal_round(state);
    }
    for (word, old) in state.iter_mut().zip(before) {
        *word = word.wrapping_add(old);
    }
}

/// The words of a state as bytes, little-endian.
pub fn state_to_bytes(state: &ChaChaState) -> [u8; BLOCK] {
    let mut out = [0; BLOCK];
    for (place, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *place = word.to_le_bytes();
    }
    out
}

/// Computes block `counter` of stream `stream`.
pub fn keystream_block(key: &Key, counter: u64, stream: u64) -> [u8; BLOCK] {
    let mut state = initial_state(key, counter, stream);
    apply_block_function(&mut state);
    state_to_bytes(&state)
}

/// Fills `out` with the first bytes of stream `stream`.
pub fn fill_keystream(key: &Key, stream: u64, out: &mut [u8]) {
    for (counter, chunk) in out.chunks_mut(BLOCK).enumerate() {
        for (place, byte) in chunk.iter_mut().zip(keystream_block(key, counter as u64, stream)) {
            *place = byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test case 1 of draft-strombergson-chacha-test-vectors, 256-bit key, 8 rounds.
    #[test]
    fn the_published_vector() {
        let expected = "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e\
                        984ce172b9216f419f445367456d5619314a42a3da86b001387bfdb80e0cfe42";
        assert_eq!(hex::encode(keystream_block(&Key([0; 32]), 0, 0)), expected);
    }

    #[test]
    fn a_stream_is_its_blocks() {
        let key = Key([7; 32]);
        let mut long = [0; 100];
        fill_keystream(&key, 3, &mut long);
        assert_eq!(long[..64], keystream_block(&key, 0, 3));
        assert_eq!(long[64..], keystream_block(&key, 1, 3)[..36]);
    }
}
