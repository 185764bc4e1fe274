//! Broken weight files: refused with a reason, without a panic and without much memory.

use candle_core::quantized::GgmlDType;
use muster_image_llm::model::{Shape, check_gguf, check_safetensors};

use crate::support::{self, Random};

/// Changes a file in one of the ways in which files break, most often in its header.
fn broken(whole: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    let header = 2_600.min(bytes.len());
    for _ in 0..1 + random.below(4) {
        let at = random.below(header.min(bytes.len()));
        match random.below(5) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => {
                let value = [
                    u64::MAX,
                    1 << 63,
                    1 << 32,
                    0,
                    u64::from(u32::MAX),
                    whole.len() as u64,
                ][random.below(6)];
                let end = (at + 8).min(bytes.len());
                bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
            }
            3 => {
                let cut = random.below(bytes.len());
                bytes.truncate(cut.max(1));
            }
            _ => {
                bytes.insert(at, random.next() as u8);
            }
        }
    }
    bytes
}

fn memory_high() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmPeak:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

#[test]
fn broken_files_are_refused_and_cost_nothing() {
    let mut random = Random(2026);
    let before = memory_high();
    let (mut refused, mut taken) = (0, 0);
    let mut count = |ok: bool| if ok { taken += 1 } else { refused += 1 };
    let gguf = support::gguf(GgmlDType::Q8_0).unwrap();
    let safetensors = support::safetensors().unwrap();
    for _ in 0..4_000 {
        let file = broken(&gguf, &mut random);
        count(check_gguf(&file).and_then(|file| file.shape()).is_ok());
        let file = broken(&safetensors, &mut random);
        count(check_safetensors(&file).is_ok());
        let _ = Shape::from_config(&broken(support::config().as_bytes(), &mut random));
    }
    assert!(
        refused > 4_000 && taken > 100,
        "{refused} refused, {taken} taken: the changes reach both"
    );
    // Another test of this process may take some, too; a length that was believed would take terabytes.
    assert!(memory_high() - before < 2 << 20, "2 GiB were taken");
}

#[test]
fn loading_a_broken_file_never_panics() {
    let mut random = Random(5);
    let gguf = support::gguf(GgmlDType::Q4_0).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    for _ in 0..300 {
        std::fs::write(&file, broken(&gguf, &mut random)).unwrap();
        let _ = support::load_file(&file);
    }
    std::fs::write(&file, gguf).unwrap();
    support::load_file(&file).unwrap();

    let whole = support::safetensors().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let read = || muster_image_llm::model::load(folder.path(), muster_image_llm::model::Storage::AsGiven);
    for _ in 0..300 {
        std::fs::write(
            at("config.json"),
            broken(support::config().as_bytes(), &mut random),
        )
        .unwrap();
        std::fs::write(at("model.safetensors"), broken(&whole, &mut random)).unwrap();
        let _ = read();
        // Most often only one of the two is broken.
        std::fs::write(at("config.json"), support::config()).unwrap();
        let _ = read();
    }
    std::fs::write(at("model.safetensors"), whole).unwrap();
    read().unwrap();
}

#[test]
fn a_model_without_its_parts_says_what_is_missing() {
    use muster_image_llm::model::{Storage, load};
    let folder = tempfile::tempdir().unwrap();
    let reason = |folder: &std::path::Path| load(folder, Storage::AsGiven).err().unwrap().to_string();
    assert!(reason(folder.path()).contains("config.json"));
    std::fs::write(folder.path().join("config.json"), support::config()).unwrap();
    assert!(reason(folder.path()).contains("safetensors"));
    std::fs::write(
        folder.path().join("model.safetensors"),
        safetensors::serialize(Vec::<(String, safetensors::tensor::TensorView<'_>)>::new(), None).unwrap(),
    )
    .unwrap();
    assert!(reason(folder.path()).contains("input_layernorm"));
}
