//! Builds a form with one file, as browsers and S3 use it (RFC 7578): the fields in their order, the file last. Pure.
//!
//! The length of everything but the file is known before the file is sent: S3 accepts no body without a length.
//!
//! `reqwest::multipart` cannot write this form: it draws its own boundary, and keeps line breaks in file names.

use indexmap::IndexMap;

/// Upper bound on the total size of the fields, in bytes. S3's own limit is lower.
const MAX_FIELDS_BYTES: usize = 256 << 10;

/// The bytes before and after the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FormEnvelope {
    pub(crate) content_type: String,
    pub(crate) before: Vec<u8>,
    pub(crate) after: Vec<u8>,
}

/// `boundary` must not occur in the file, so the caller draws it at random.
pub(crate) fn build_form(
    fields: Option<&IndexMap<String, String>>,
    file_name: &str,
    boundary: [u8; 16],
) -> Result<FormEnvelope, &'static str> {
    let boundary = format!("muster-{}", hex::encode(boundary));
    let mut before = String::new();
    for (name, value) in fields.into_iter().flatten() {
        let name = escape_name(name);
        before.push_str(&format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        ));
        if before.len() > MAX_FIELDS_BYTES {
            return Err("has more than 256 KiB of form fields");
        }
    }
    let kind = if file_name.ends_with(".zip") {
        "application/zip"
    } else {
        "application/octet-stream"
    };
    let name = escape_name(file_name);
    before.push_str(&format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\nContent-Type: {kind}\r\n\r\n"
    ));
    Ok(FormEnvelope {
        content_type: format!("multipart/form-data; boundary={boundary}"),
        before: before.into_bytes(),
        after: format!("\r\n--{boundary}--\r\n").into_bytes(),
    })
}

/// Escapes the characters that would end the quoted name, as browsers do.
fn escape_name(name: &str) -> String {
    name.chars()
        .map(|letter| match letter {
            '"' => "%22".to_owned(),
            '\r' => "%0D".to_owned(),
            '\n' => "%0A".to_owned(),
            other => other.to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::Mutator;

    fn fields(pairs: &[(&str, &str)]) -> IndexMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn byte_by_byte() {
        let fields = fields(&[("key", "a/${filename}"), ("policy", "eyJ=")]);
        let form = build_form(Some(&fields), "output.zip", [0xab; 16]).unwrap();
        let b = format!("muster-{}", "ab".repeat(16));
        assert_eq!(form.content_type, format!("multipart/form-data; boundary={b}"));
        assert_eq!(
            String::from_utf8(form.before).unwrap(),
            format!(
                "--{b}\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\na/${{filename}}\r\n\
                 --{b}\r\nContent-Disposition: form-data; name=\"policy\"\r\n\r\neyJ=\r\n\
                 --{b}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"output.zip\"\r\n\
                 Content-Type: application/zip\r\n\r\n"
            )
        );
        assert_eq!(String::from_utf8(form.after).unwrap(), format!("\r\n--{b}--\r\n"));
    }

    #[test]
    fn a_name_cannot_end_its_line() {
        let fields = fields(&[("a\"\r\nX: y", "v")]);
        let form = build_form(Some(&fields), "b\"\r\nContent-Type: text/html", [0; 16]).unwrap();
        let text = String::from_utf8(form.before).unwrap();
        assert!(text.contains("name=\"a%22%0D%0AX: y\"\r\n"), "{text}");
        assert!(
            text.contains("filename=\"b%22%0D%0AContent-Type: text/html\"\r\n"),
            "{text}"
        );
    }

    #[test]
    fn fields_are_bounded() {
        let large = fields(&[("a", &"x".repeat(300 << 10))]);
        assert!(build_form(Some(&large), "f", [0; 16]).is_err());
    }

    #[test]
    fn damaged_names_make_one_part_each() {
        let samples = ["key", "a\"b", "x\r\n\r\n--y", "ä"].map(|text| text.as_bytes().to_vec());
        let mut mutator = Mutator::seeded(17);
        for _ in 0..5_000 {
            let name = String::from_utf8_lossy(&mutator.next_from(&samples)).into_owned();
            let form = build_form(Some(&fields(&[(&name, "v")])), &name, [1; 16]).unwrap();
            let text = String::from_utf8(form.before).unwrap();
            assert_eq!(text.matches("\r\n\r\n").count(), 2, "{name:?}");
            assert_eq!(text.matches("\r\nContent-").count(), 3, "{name:?}");
        }
    }
}
