//! A relay before PostgreSQL that loses the answer to a commit: the connection ends after the server was asked and
//! before its client hears, as when the database fails over. It reads the messages of PostgreSQL's protocol 3.0
//! (<https://www.postgresql.org/docs/15/protocol-message-formats.html>).

use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Where the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The server has committed; its answer is lost.
    AfterCommit,
    /// The server was never asked to commit.
    BeforeCommit,
}

/// A relay that runs until the process ends; a connection is passed on for as long as its client wants.
#[derive(Debug)]
pub struct DatabaseRelay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    plan: Mutex<Option<Plan>>,
    cuts: AtomicU32,
    /// Whether no answer of the server is passed on, and the signal that this has changed.
    holds: Mutex<bool>,
    changed: Condvar,
}

#[derive(Clone, Debug)]
struct Plan {
    cut: Cut,
    /// Commits that pass before.
    pass: u32,
    /// Only commits of transactions with such a statement count.
    statement: String,
}

/// The requests of a client on one connection, as far as its commits need them.
#[derive(Debug, Default)]
struct Conversation {
    statements: HashMap<Vec<u8>, String>,
    in_transaction: bool,
    /// Whether a statement of the plan was run since the last commit.
    touched: bool,
}

impl DatabaseRelay {
    /// Passes on to the server of the URL `url`; returns the relay and the URL that leads through it.
    ///
    /// # Errors
    /// There is no port, or the URL names no host with a port.
    pub fn start(url: &str) -> io::Result<(Self, String)> {
        let no_host = || io::Error::other("the URL names no host with a port");
        let (scheme, rest) = url.split_once("://").ok_or_else(no_host)?;
        let (authority, path) = rest.split_once('/').ok_or_else(no_host)?;
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let server: SocketAddr = host.parse().map_err(|_| no_host())?;
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let passing = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let passing = Arc::clone(&passing);
                std::thread::spawn(move || {
                    // Either side may end at any time.
                    let _ = pass(&passing, client, server);
                });
            }
        });
        let user = if user.is_empty() {
            String::new()
        } else {
            format!("{user}@")
        };
        Ok((
            Self { address, shared },
            format!("{scheme}://{user}{address}/{path}"),
        ))
    }

    /// Where the relay listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts one connection, at the commit after `pass` others.
    pub fn cut(&self, cut: Cut, pass: u32) {
        self.cut_at(cut, pass, "");
    }

    /// Cuts one connection, at the next commit of a transaction that runs a statement with the text `statement`, or of
    /// such a statement outside a transaction.
    pub fn cut_statement(&self, cut: Cut, statement: &str) {
        self.cut_at(cut, 0, statement);
    }

    fn cut_at(&self, cut: Cut, pass: u32, statement: &str) {
        let statement = statement.to_owned();
        *self.shared.plan() = Some(Plan { cut, pass, statement });
    }

    /// The number of connections that were cut.
    pub fn cuts(&self) -> u32 {
        self.shared.cuts.load(Ordering::SeqCst)
    }

    /// Holds every answer of the server from now on: it answers late, and for as long as the test wants.
    pub fn hold_answers(&self) {
        self.shared.hold(true);
    }

    /// Passes everything on from now on.
    pub fn spare(&self) {
        *self.shared.plan() = None;
        self.shared.hold(false);
    }
}

impl Shared {
    fn plan(&self) -> std::sync::MutexGuard<'_, Option<Plan>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, holds: bool) {
        *self.holds.lock().unwrap_or_else(PoisonError::into_inner) = holds;
        self.changed.notify_all();
    }

    fn wait_while_held(&self) {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        while *holds {
            holds = self.changed.wait(holds).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The cut that is due at a commit; counts it.
    fn due(&self, touched: bool) -> Option<Cut> {
        let mut plan = self.plan();
        let due = plan.as_mut()?;
        if !due.statement.is_empty() && !touched {
            return None;
        }
        if due.pass > 0 {
            due.pass -= 1;
            return None;
        }
        let cut = due.cut;
        *plan = None;
        self.cuts.fetch_add(1, Ordering::SeqCst);
        Some(cut)
    }

    fn is_planned(&self, statement: &str) -> bool {
        let plan = self.plan();
        plan.as_ref()
            .is_some_and(|plan| !plan.statement.is_empty() && statement.contains(&plan.statement))
    }
}

/// One connection, from its first message to its end.
fn pass(shared: &Arc<Shared>, client: TcpStream, server: SocketAddr) -> io::Result<()> {
    let mut to_server = TcpStream::connect(server)?;
    let mut to_client = client.try_clone()?;
    // Messages are passed on one by one; none waits for the acknowledgement of the one before.
    to_server.set_nodelay(true)?;
    to_client.set_nodelay(true)?;
    let mut from_client = BufReader::new(client);
    greet(&mut from_client, &mut to_client, &mut to_server)?;
    let cutting = Arc::new(AtomicBool::new(false));
    let answers = {
        let (cutting, shared, from_server) =
            (Arc::clone(&cutting), Arc::clone(shared), to_server.try_clone()?);
        std::thread::spawn(move || answer(&shared, &cutting, from_server, to_client))
    };
    let mut conversation = Conversation::default();
    while let Ok(message) = Message::read(&mut from_client) {
        let cut = conversation
            .commits(&message, shared)
            .and_then(|touched| shared.due(touched));
        match cut {
            Some(Cut::BeforeCommit) => break,
            Some(Cut::AfterCommit) => {
                cutting.store(true, Ordering::SeqCst);
                message.write(&mut to_server)?;
                // The other thread ends the connection once the server has answered.
                let _ = answers.join();
                break;
            }
            None => message.write(&mut to_server)?,
        }
    }
    let _ = to_server.shutdown(Shutdown::Both);
    let _ = from_client.get_ref().shutdown(Shutdown::Both);
    Ok(())
}

/// Refuses encryption and passes the first message on, which has no kind.
fn greet(from: &mut impl Read, back: &mut TcpStream, to: &mut TcpStream) -> io::Result<()> {
    const ASKS_FOR_TLS: [u8; 4] = 80_877_103_u32.to_be_bytes();
    loop {
        let mut head = [0; 8];
        from.read_exact(&mut head)?;
        let (length, code) = head.split_at(4);
        if code == ASKS_FOR_TLS {
            back.write_all(b"N")?;
            continue;
        }
        let mut rest = vec![0; length_of(length)?.saturating_sub(8)];
        from.read_exact(&mut rest)?;
        to.write_all(&head)?;
        return to.write_all(&rest);
    }
}

/// Passes the server's messages on. While `cutting`, none is: the connection ends once the server is ready again.
fn answer(shared: &Shared, cutting: &AtomicBool, server: TcpStream, mut client: TcpStream) {
    let mut from = BufReader::new(server);
    while let Ok(message) = Message::read(&mut from) {
        shared.wait_while_held();
        if cutting.load(Ordering::SeqCst) {
            if message.kind == b'Z' {
                break;
            }
        } else if message.write(&mut client).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}

/// A message: its kind, and its body.
struct Message {
    kind: u8,
    body: Vec<u8>,
}

impl Message {
    fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 5];
        from.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let mut body = vec![0; length_of(&length)?.saturating_sub(4)];
        from.read_exact(&mut body)?;
        Ok(Self { kind, body })
    }

    fn write(&self, to: &mut TcpStream) -> io::Result<()> {
        let length = u32::try_from(self.body.len() + 4).map_err(io::Error::other)?;
        let mut bytes = vec![self.kind];
        bytes.extend(length.to_be_bytes());
        bytes.extend(&self.body);
        to.write_all(&bytes)
    }

    /// The texts of the body up to its zero bytes.
    fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.body.split(|byte| *byte == 0)
    }
}

fn length_of(bytes: &[u8]) -> io::Result<usize> {
    let bytes: [u8; 4] = bytes.try_into().map_err(io::Error::other)?;
    usize::try_from(u32::from_be_bytes(bytes)).map_err(io::Error::other)
}

impl Conversation {
    /// Whether the message asks the server to commit; then, whether a statement of the plan is in what it commits.
    fn commits(&mut self, message: &Message, shared: &Shared) -> Option<bool> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut texts = message.texts();
        match message.kind {
            b'P' => {
                let name = texts.next().unwrap_or_default().to_vec();
                let statement = text(texts.next().unwrap_or_default());
                self.statements.insert(name, statement);
                None
            }
            b'B' => {
                let name = texts.nth(1).unwrap_or_default();
                let statement = self.statements.get(name);
                self.touched |= statement.is_some_and(|statement| shared.is_planned(statement));
                None
            }
            b'Q' => {
                let statement = text(texts.next().unwrap_or_default()).to_uppercase();
                match statement.as_str() {
                    begin if begin.starts_with("BEGIN") => self.in_transaction = true,
                    "ROLLBACK" => self.in_transaction = false,
                    commit if commit.ends_with("COMMIT") => {
                        self.in_transaction = false;
                        return Some(std::mem::take(&mut self.touched));
                    }
                    _ => {}
                }
                None
            }
            // Outside a transaction a statement commits by itself. Only those of a plan count.
            b'S' if !self.in_transaction && self.touched => {
                self.touched = false;
                Some(true)
            }
            _ => None,
        }
    }
}
