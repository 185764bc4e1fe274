//! Errors that an operator or a user may meet. Each has a code and a page in `docs/errors/`.

use std::fmt;

/// One row per code. A missing page does not compile.
macro_rules! error_codes {
    ($($(#[$meta:meta])* $variant:ident = $code:literal, $page:literal, $title:literal;)+) => {
        /// A failure that can be looked up: `muster` prints the code, `docs/errors/` explains it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorCode { $($(#[$meta])* $variant),+ }

        impl ErrorCode {
            /// Every code, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The code, such as `E0001`.
            pub const fn code(self) -> &'static str { match self { $(Self::$variant => $code),+ } }

            /// The headline of the code's page.
            pub const fn title(self) -> &'static str { match self { $(Self::$variant => $title),+ } }

            /// The whole page in Markdown.
            pub const fn page(self) -> &'static str {
                match self { $(Self::$variant => include_str!(concat!("../../../../docs/errors/", $page))),+ }
            }
        }
    };
}

error_codes! {
    /// No Docker engine answers.
    EngineUnreachable = "E0001", "E0001.md", "no Docker engine answers";
    /// The configuration has errors.
    ConfigInvalid = "E0002", "E0002.md", "the configuration has errors";
    /// An address is taken, or does not belong to this machine.
    BindFailed = "E0003", "E0003.md", "cannot listen on an address";
    /// No chain endpoint answers.
    ChainUnreachable = "E0004", "E0004.md", "no chain endpoint answers";
    /// The hotkey has no uid in the subnet.
    NotRegistered = "E0005", "E0005.md", "the hotkey is not registered in the subnet";
    /// A wallet file is missing or unreadable.
    WalletUnusable = "E0006", "E0006.md", "the wallet cannot be used";
    /// A database cannot be opened or migrated.
    StoreFailed = "E0007", "E0007.md", "the store cannot be used";
    /// An image is neither present nor loadable.
    ImageMissing = "E0008", "E0008.md", "the image is not on the executor";
    /// The job's program ended with another exit code than 0.
    JobExitCode = "E0009", "E0009.md", "the job's program failed";
    /// The job's program ran too long.
    JobTimeout = "E0010", "E0010.md", "the job ran longer than it was allowed";
    /// A signature is missing, wrong, too old or used before.
    SignatureRefused = "E0011", "E0011.md", "a signature was refused";
    /// No miner can run the job.
    NoMiner = "E0012", "E0012.md", "no miner can take the job";
    /// The connection to the miner was lost.
    MinerLost = "E0013", "E0013.md", "the miner was lost";
    /// The facilitator does not answer, or does not accept this validator.
    FacilitatorUnreachable = "E0014", "E0014.md", "the facilitator cannot be used";
    /// An input could not be put in place.
    VolumeRefused = "E0015", "E0015.md", "an input volume was refused";
    /// A part that `muster up` needs could not be built.
    BuildFailed = "E0016", "E0016.md", "a part of the local subnet could not be built";
    /// Weights did not reach the chain.
    WeightsNotSet = "E0017", "E0017.md", "weights were not set";
    /// A child process of `muster up` keeps stopping.
    RoleDied = "E0018", "E0018.md", "a role of the local subnet keeps stopping";
    /// A server does not serve an input, or not to its end.
    InputUnreachable = "E0019", "E0019.md", "an input cannot be reached";
    /// A server refuses to serve an input.
    InputDenied = "E0020", "E0020.md", "a server refused to hand out an input";
    /// A job names a URL that jobs may not use.
    AddressRefused = "E0021", "E0021.md", "a job may not reach an address";
    /// An input's bytes differ from the promised ones.
    InputMismatch = "E0022", "E0022.md", "an input is not what it should be";
    /// An output does not exist, is not a file, or is not accepted.
    UploadRefused = "E0023", "E0023.md", "an output was not accepted";
    /// A server does not accept an output.
    UploadUnreachable = "E0024", "E0024.md", "an output could not be delivered";
    /// A persistent executor is not enrolled at its miner.
    NotEnrolled = "E0025", "E0025.md", "the executor is not enrolled at its miner";
    /// The file store's folder or bucket cannot be used.
    FileStoreFailed = "E0031", "E0031.md", "the file store cannot be used";
    /// A user's file is not accepted or not served.
    FileRefused = "E0032", "E0032.md", "a file was not accepted";
    /// A user's command has neither a key nor a wallet.
    NotLoggedIn = "E0033", "E0033.md", "nobody is logged in";
    /// The miner did not attest a session.
    SessionUnattested = "E0034", "E0034.md", "a streaming session was not attested";
    /// A streaming job is up and does not answer.
    SessionUnanswered = "E0035", "E0035.md", "a streaming job does not answer";
    /// Files that an image keeps where jobs write do not fit on a job's disk.
    ImageFilesTooLarge = "E0040", "E0040.md", "the files that an image keeps where jobs write do not fit on the job's disk";
    /// An executor would go on for longer than its miner keeps the lease.
    OrphanBeyondLease = "E0041", "E0041.md", "an executor would go on for longer than its miner waits for it";
    /// A stream that a job printed cannot be printed whole.
    OutputIncomplete = "E0044", "E0044.md", "the output of a job is not whole";
    /// The engine knows images by their manifests, and not by their ids.
    EngineImageStore = "E0048", "E0048.md", "the engine's image store knows no image by its id";
    /// No container can be started of the job's image, or the program is not in it.
    ImageBroken = "E0036", "E0036.md", "the image cannot be started";
    /// `muster up` was started in a folder in which it runs already.
    SubnetRunsAlready = "E0050", "E0050.md", "a subnet runs in the folder already";
    /// Something of the user's has the place of a file that was fetched.
    PlaceTaken = "E0051", "E0051.md", "a file of yours has the place of a result";
    /// An operator's command found no store where the configuration names it.
    NoStoreHere = "E0052", "E0052.md", "there is no store where the configuration names it";
    /// A user's command names a job that the account does not have.
    JobUnknown = "E0053", "E0053.md", "no job of yours is meant";
    /// A user's command names a job by the beginning of several ids.
    JobAmbiguous = "E0054", "E0054.md", "several jobs are meant";
    /// No class of executor has what a user's command asks for.
    NoSuchMachine = "E0055", "E0055.md", "no class of executor has the machine that the job needs";
    /// The connection to the database was lost between a commit and its answer.
    OutcomeUnknown = "E0056", "E0056.md", "the database did not answer whether a change was made";
    /// A process that shares its store with another one does not lead, or leads no longer.
    NotLeading = "E0057", "E0057.md", "another process of the same validator leads";
    /// The clock of a machine differs from those of the database and the chain.
    ClockDiffers = "E0058", "E0058.md", "the clock of the machine is wrong";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_about_its_code() {
        for code in ErrorCode::ALL {
            let head = code.page().lines().next().unwrap_or_default();
            assert_eq!(head, format!("# {code}: {}", code.title()));
            for section in ["## What happened", "## Whose fault", "## What to do"] {
                assert!(code.page().contains(section), "{code} lacks {section}");
            }
        }
    }
}
