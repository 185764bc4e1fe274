//! The outputs that a user asks for: read from the command line, with a place for each that has none.

use indexmap::IndexMap;
use muster_client::Client;
use muster_client::files::file_of;
use muster_protocol::relative_path::check_relative_path;
use muster_protocol::rest::CreateFile;
use muster_protocol::upload::{
    FilePut, FileUpload, OutputKind, PARTIAL_HEADER, PARTIAL_KEEP, WHOLE_OUTPUT, is_pattern,
};
use muster_protocol::{ErrorCode, Feature};

use super::local_place::{Coming, PlaceError, is_there};
use super::run::{name_of, no_store};
use super::saved_outputs::SaveTo;
use crate::facilitator_access::client_failure;
use crate::failure::{Failure, Result};
use crate::job_inputs::{self, path_below};

/// The form in which the user asks for an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AskedForm {
    /// It is a file or a folder.
    Either,
    Folder,
    /// It is all files that match the path.
    Pattern,
}

/// Where an output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AskedOutput {
    /// Under `/output`; [`WHOLE_OUTPUT`] for all of it.
    path: String,
    form: AskedForm,
    /// The user's own place; the facilitator's store if there is none.
    url: Option<String>,
}

impl AskedOutput {
    /// Reads `PATH`, `FOLDER/`, `.` or a pattern such as `*.csv`, each with `=URL` or without. The path may
    /// begin with `./` or `/output/`.
    pub(super) fn read(text: &str) -> Result<Self> {
        let (path, url) = match text.split_once('=') {
            Some((path, url)) => (path, Some(url)),
            None => (text, None),
        };
        let (path, form) = match path_below("/output", path) {
            "" if !path.is_empty() => (WHOLE_OUTPUT, AskedForm::Folder),
            WHOLE_OUTPUT => (WHOLE_OUTPUT, AskedForm::Folder),
            below => match below.strip_suffix('/') {
                Some(folder) => (folder, AskedForm::Folder),
                None if is_pattern(below) => (below, AskedForm::Pattern),
                None => (below, AskedForm::Either),
            },
        };
        if path != WHOLE_OUTPUT
            && let Err(reason) = check_relative_path(path)
        {
            return Err(Failure::usage(format_args!(
                "an output is a file or a folder under /output, and {path:?} {reason} (`--output .` fetches all of \
                 /output, whatever the names in it; to say where to write what comes back: --save FOLDER)"
            )));
        }
        if let Some(url) = url.filter(|url| !job_inputs::is_url(url)) {
            return Err(Failure::usage(format_args!(
                "an output keeps its name, and --save FOLDER says where it goes here; behind `=` stands a URL that takes \
                 PUT, got {url:?}"
            )));
        }
        Ok(Self {
            path: path.to_owned(),
            form,
            url: url.map(str::to_owned),
        })
    }

    /// A line for a name that may have been meant as docker's `HERE:THERE`.
    pub(super) fn notice(&self) -> Option<String> {
        let is_pair = self.form != AskedForm::Pattern && self.path.contains(':');
        is_pair.then(|| {
            format!(
                "the output {:?} is one name with a colon in it; --save FOLDER says where outputs go here",
                self.path
            )
        })
    }

    /// Whether an upload of the job brings this output back. One with a place of the user's own goes there alone.
    pub(super) fn comes_back_as(&self, upload: &FileUpload) -> bool {
        self.comes_here() && upload.relative_path() == self.path
    }

    /// Whether it is written to this machine at the job's end.
    fn comes_here(&self) -> bool {
        self.url.as_deref().is_none_or(|own| file_of(own).is_some())
    }

    /// The kinds of which one upload each is made; [`None`] for ComputeHorde's form.
    fn kinds(&self, knows_folders: bool) -> &'static [Option<OutputKind>] {
        match (knows_folders, self.form, &self.url) {
            (_, AskedForm::Pattern, _) => &[Some(OutputKind::Matching)],
            (false, AskedForm::Folder | AskedForm::Either, _) => &[None],
            (true, AskedForm::Folder, _) => &[Some(OutputKind::Folder)],
            // One URL takes one of the two.
            (true, AskedForm::Either, Some(_)) => &[Some(OutputKind::File)],
            (true, AskedForm::Either, None) => &[Some(OutputKind::File), Some(OutputKind::Folder)],
        }
    }
}

/// Finds what the user has at the places of outputs that come here, so that no job runs to be refused at its end. A
/// folder that is there is no fault: only the job knows the names in it.
pub(super) fn check_places(outputs: &[AskedOutput], to: SaveTo<'_>) -> Result<()> {
    let mut taken = Vec::new();
    for output in outputs.iter().filter(|output| output.comes_here()) {
        let coming = match output.form {
            AskedForm::Folder => Coming::Folder,
            AskedForm::Either => Coming::Either,
            // Only the job knows the names.
            AskedForm::Pattern => continue,
        };
        match is_there(&to.folder.join(&output.path), coming, to.overwrite) {
            Ok(_) => {}
            Err(PlaceError::Taken(places)) => taken.push(places.to_string()),
            Err(error @ PlaceError::Io { .. }) => return Err(error.into()),
        }
    }
    if taken.is_empty() {
        return Ok(());
    }
    let reason = anyhow::anyhow!(
        "{}, where outputs are to be written; nothing runs. Name another folder with --save, or let --force replace \
         what is here",
        taken.join(", ")
    );
    Err(Failure::new(ErrorCode::PlaceTaken, reason))
}

/// Makes a place for each output that has none. Only a place that is used later counts towards an account's bytes.
pub(super) async fn make_places(client: &Client, outputs: &[AskedOutput]) -> Result<Vec<FileUpload>> {
    if outputs.is_empty() {
        return Ok(Vec::new());
    }
    let known = client.features().await.map_err(client_failure)?;
    let knows_folders = known.has(Feature::Folders);
    let find = |form| outputs.iter().find(|output| output.form == form);
    let pattern = find(AskedForm::Pattern).filter(|_| !known.has(Feature::OutputPatterns));
    if let Some(pattern) = pattern {
        return Err(Failure::usage(format_args!(
            "this facilitator does not know outputs that are named by a pattern, such as {:?}: name the files, or their \
             folder",
            pattern.path
        )));
    }
    if let Some(folder) = find(AskedForm::Folder).filter(|_| !knows_folders) {
        return Err(Failure::usage(format_args!(
            "this facilitator does not know outputs that are folders, such as {:?}: name the files, or have the program \
             pack them into one",
            folder.path
        )));
    }
    let mut uploads = Vec::new();
    for output in outputs {
        for kind in output.kinds(knows_folders) {
            uploads.push(upload_of(client, output, *kind).await?);
        }
    }
    Ok(uploads)
}

async fn upload_of(client: &Client, output: &AskedOutput, kind: Option<OutputKind>) -> Result<FileUpload> {
    let (url, signed_headers) = match &output.url {
        Some(url) => (url.clone(), None),
        None => {
            let place = CreateFile {
                name: stored_name(&output.path, kind),
                size: None,
                max_size: None,
                sha256: None,
            };
            let url = client.create_file(&place).await.map_err(no_store)?.upload_url;
            // Nobody but the user reads the store, so what a failed job left may lie there.
            let keep = (PARTIAL_HEADER.to_owned(), PARTIAL_KEEP.to_owned());
            (url, Some(IndexMap::from([keep])))
        }
    };
    Ok(FileUpload::SingleFilePut(FilePut {
        url,
        relative_path: output.path.clone(),
        signed_headers,
        kind,
    }))
}

/// The name of an output in the store. A folder lies there as an archive.
fn stored_name(path: &str, kind: Option<OutputKind>) -> String {
    match kind {
        Some(OutputKind::Matching) => "output.tar".to_owned(),
        Some(OutputKind::Folder) if path == WHOLE_OUTPUT => "output.tar".to_owned(),
        Some(OutputKind::Folder) => format!("{}.tar", name_of(path)),
        Some(OutputKind::File) | None => name_of(path),
    }
}

#[cfg(test)]
mod tests {
    use super::super::local_place::Overwrite;
    use super::*;

    fn read(text: &str) -> (String, bool, Option<String>) {
        let AskedOutput { path, form, url } = AskedOutput::read(text).unwrap();
        (path, form == AskedForm::Folder, url)
    }

    #[test]
    fn an_output_is_a_file_a_folder_or_all_of_them() {
        assert_eq!(read("a/b.bin"), ("a/b.bin".to_owned(), false, None));
        assert_eq!(read("results/"), ("results".to_owned(), true, None));
        assert_eq!(read("."), (".".to_owned(), true, None));
        for whole in ["./", "/output", "/output/", "/output/."] {
            assert_eq!(read(whole), (".".to_owned(), true, None), "{whole}");
        }
        for one in ["./a/b.bin", "/output/a/b.bin", "././a/b.bin", "/output/./a/b.bin"] {
            assert_eq!(read(one), ("a/b.bin".to_owned(), false, None), "{one}");
        }
        assert_eq!(read("/output/results/"), ("results".to_owned(), true, None));
        assert_eq!(read("output/a"), ("output/a".to_owned(), false, None));
        let url = "https://host/b?x=1".to_owned();
        assert_eq!(
            read("b.bin=https://host/b?x=1"),
            ("b.bin".to_owned(), false, Some(url))
        );
    }

    #[test]
    fn an_output_that_could_not_be_delivered_is_refused_before_the_job_is_made() {
        for bad in [
            "",
            "/",
            "/b",
            "../b",
            "a//b",
            "/outputs/a",
            "//output/a",
            "a/./b",
            "a/../b",
            "a\\b",
            "b//",
            "b=",
            "b=ftp://x",
            "b=./here",
        ] {
            assert!(AskedOutput::read(bad).is_err(), "{bad}");
        }
        assert!(AskedOutput::read(&"x".repeat(256)).is_err());
    }

    #[test]
    fn an_upload_that_the_facilitator_adds_is_no_asked_output() {
        let upload = |path: &str| {
            FileUpload::SingleFilePut(FilePut {
                url: "http://f/files/11111111-2222-4333-8444-555555555555/upload".to_owned(),
                relative_path: path.to_owned(),
                signed_headers: None,
                kind: None,
            })
        };
        let comes_back = |asked: &str, path| AskedOutput::read(asked).unwrap().comes_back_as(&upload(path));
        assert!(comes_back("a/b", "a/b") && comes_back("a/", "a") && comes_back(".", "."));
        assert!(!comes_back("a/b", ".git/hooks/pre-commit"));
        assert!(!comes_back("a/", "a/b") && !comes_back("a", "."));
        assert!(!comes_back("a=https://host/a", "a"));
    }

    #[test]
    fn a_file_at_the_place_of_an_output_is_found_before_the_job_is_made() {
        let here = tempfile::tempdir().unwrap();
        std::fs::write(here.path().join("a.csv"), "mine").unwrap();
        std::fs::create_dir(here.path().join("folder")).unwrap();
        let check = |asked: &str, overwrite| {
            let to = SaveTo {
                folder: here.path(),
                overwrite,
            };
            check_places(&[AskedOutput::read(asked).unwrap()], to)
        };
        let (never, forced) = (Overwrite::Never, Overwrite::Forced);
        for free in ["b.csv", "folder", "folder/", ".", "a.csv=https://host/a"] {
            check(free, never).unwrap();
        }
        for taken in ["a.csv", "./a.csv", "a.csv/"] {
            let refused = check(taken, never).unwrap_err().to_string();
            assert!(
                refused.contains("a.csv is here already") && refused.contains("--force"),
                "{refused}"
            );
            check(taken, forced).unwrap();
        }
    }

    #[test]
    fn a_name_of_which_nobody_knows_the_kind_has_a_place_for_each() {
        let kinds = |text: &str, knows| AskedOutput::read(text).unwrap().kinds(knows).to_vec();
        let (file, folder) = (Some(OutputKind::File), Some(OutputKind::Folder));
        assert_eq!(kinds("a", true), [file, folder]);
        assert_eq!(kinds("a/", true), [folder]);
        assert_eq!(kinds(".", true), [folder]);
        assert_eq!(kinds("a=http://h/", true), [file]);
        assert_eq!(kinds("a/=http://h/", true), [folder]);
        assert_eq!(kinds("a", false), [None]);
        for pattern in ["*.csv", "./run?/*", "/output/*.csv=http://h/"] {
            assert_eq!(kinds(pattern, true), [Some(OutputKind::Matching)], "{pattern}");
        }
        assert_eq!(kinds("a[1]", true), [file, folder], "a name as it is");
        assert_eq!(stored_name("*.csv", Some(OutputKind::Matching)), "output.tar");
        assert_eq!(stored_name("x/results", folder), "results.tar");
        assert_eq!(stored_name(".", folder), "output.tar");
    }
}
