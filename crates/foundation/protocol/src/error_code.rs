//! Errors that an operator or a user may meet: each has a code and a page in `docs/errors/`.

use std::fmt;

/// One row a code. A missing page does not compile.
macro_rules! error_codes {
    ($($(#[$meta:meta])* $variant:ident = $code:literal, $page:literal, $title:literal;)+) => {
        /// What failed, in a form that can be looked up: `muster` prints the code, `docs/errors/` explains it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorCode { $($(#[$meta])* $variant),+ }

        impl ErrorCode {
            /// Every code, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// `E0001`.
            pub const fn code(self) -> &'static str { match self { $(Self::$variant => $code),+ } }

            /// The headline of its page.
            pub const fn title(self) -> &'static str { match self { $(Self::$variant => $title),+ } }

            /// The whole page, Markdown.
            pub const fn page(self) -> &'static str {
                match self { $(Self::$variant => include_str!(concat!("../../../../docs/errors/", $page))),+ }
            }
        }
    };
}

error_codes! {
    /// No Docker engine answers.
    EngineUnreachable = "E0001", "E0001.md", "no Docker engine answers";
    /// A configuration that cannot be used.
    ConfigInvalid = "E0002", "E0002.md", "the configuration has errors";
    /// An address that is taken or not ours.
    BindFailed = "E0003", "E0003.md", "cannot listen on an address";
    /// No chain endpoint answers.
    ChainUnreachable = "E0004", "E0004.md", "no chain endpoint answers";
    /// A hotkey without a uid.
    NotRegistered = "E0005", "E0005.md", "the hotkey is not registered in the subnet";
    /// A wallet file that is missing or unreadable.
    WalletUnusable = "E0006", "E0006.md", "the wallet cannot be used";
    /// A database that cannot be opened or migrated.
    StoreFailed = "E0007", "E0007.md", "the store cannot be used";
    /// An image that is neither present nor loadable.
    ImageMissing = "E0008", "E0008.md", "the image is not on the executor";
    /// A program that ended with another exit code than 0.
    JobExitCode = "E0009", "E0009.md", "the job's program failed";
    /// A program that ran too long.
    JobTimeout = "E0010", "E0010.md", "the job ran longer than it was allowed";
    /// A signature that is missing, wrong, old or used before.
    SignatureRefused = "E0011", "E0011.md", "a signature was refused";
    /// No miner for a job.
    NoMiner = "E0012", "E0012.md", "no miner can take the job";
    /// A miner that vanished.
    MinerLost = "E0013", "E0013.md", "the miner was lost";
    /// A facilitator that does not answer or does not accept us.
    FacilitatorUnreachable = "E0014", "E0014.md", "the facilitator cannot be used";
    /// An input that could not be put in place.
    VolumeRefused = "E0015", "E0015.md", "an input volume was refused";
    /// Something `muster up` needs and could not build.
    BuildFailed = "E0016", "E0016.md", "a part of the local subnet could not be built";
    /// Weights that did not reach the chain.
    WeightsNotSet = "E0017", "E0017.md", "weights were not set";
    /// A child process of `muster up` that keeps dying.
    RoleDied = "E0018", "E0018.md", "a role of the local subnet keeps stopping";
    /// A server that does not hand out an input, or not to the end.
    InputUnreachable = "E0019", "E0019.md", "an input cannot be reached";
    /// A server that refuses to hand out an input.
    InputDenied = "E0020", "E0020.md", "a server refused to hand out an input";
    /// A URL that jobs may not name.
    AddressRefused = "E0021", "E0021.md", "a job may not reach an address";
    /// Other bytes than were promised.
    InputMismatch = "E0022", "E0022.md", "an input is not what it should be";
    /// An output that does not exist, is no file, or is not accepted.
    UploadRefused = "E0023", "E0023.md", "an output was not accepted";
    /// A server that does not take an output.
    UploadUnreachable = "E0024", "E0024.md", "an output could not be delivered";
    /// A standing executor without a membership.
    NotEnrolled = "E0025", "E0025.md", "the executor is not enrolled at its miner";
    /// A folder or a bucket that cannot be used.
    FileStoreFailed = "E0031", "E0031.md", "the file store cannot be used";
    /// A user's file that is not taken, or not handed out.
    FileRefused = "E0032", "E0032.md", "a file was not accepted";
    /// A user's command that knows neither a key nor a wallet.
    NotLoggedIn = "E0033", "E0033.md", "nobody is logged in";
    /// A session that its miner does not put its name to.
    SessionUnattested = "E0034", "E0034.md", "a streaming session was not attested";
    /// A streaming job that is up and does not answer.
    SessionUnanswered = "E0035", "E0035.md", "a streaming job does not answer";
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
