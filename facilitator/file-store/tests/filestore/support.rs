//! A file store under test: its own tables, folder, clock and port.

use std::sync::Arc;
use std::sync::LazyLock;

use muster_file_store::{
    FileAccess, FileCatalogue, FileService, NewFile, ObjectStorage, Settings, StoredFile, UrlKey,
};
use muster_process::{Tasks, TestClock};
use muster_protocol::Digest;
use muster_store::testing::{TestStore, migrations_in, stores};
use reqwest::{Client, Response};
use sqlx::migrate::Migrator;
use tempfile::TempDir;

/// The facilitator's migrations, which create the tables of files.
pub(crate) static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| migrations_in("../store/migrations"));

pub(crate) const MIB: u64 = 1024 * 1024;

pub(crate) struct Store {
    pub(crate) service: Arc<FileService>,
    pub(crate) clock: TestClock,
    pub(crate) http: Client,
    pub(crate) base: String,
    pub(crate) engine: &'static str,
    pub(crate) folder: TempDir,
    pub(crate) tables: TestStore,
    tasks: Tasks,
}

/// Settings with small limits.
pub(crate) fn small() -> Settings {
    Settings {
        max_file_mib: 40,
        quota_mib: 60,
        total_mib: 100,
        keep_hours: 10,
        url_hours: 2,
        ..Settings::default()
    }
}

/// A file store over a folder, on each available database engine.
pub(crate) async fn each() -> Vec<Store> {
    each_with(small()).await
}

/// The same with other settings.
pub(crate) async fn each_with(settings: Settings) -> Vec<Store> {
    let mut each = Vec::new();
    for tables in stores(&MIGRATIONS).await.unwrap() {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("file:{}", folder.path().join("files").display());
        let storage = ObjectStorage::open(&address).await.unwrap();
        each.push(Store::with(settings.clone(), tables, storage, folder).await);
    }
    each
}

impl Store {
    pub(crate) async fn over(tables: TestStore, storage: ObjectStorage, folder: TempDir) -> Self {
        Self::with(small(), tables, storage, folder).await
    }

    async fn with(settings: Settings, tables: TestStore, storage: ObjectStorage, folder: TempDir) -> Self {
        muster_process::tls::install_provider();
        let clock = TestClock::default();
        let service = Arc::new(FileService::new(
            FileCatalogue::new(tables.pool.clone()),
            storage,
            UrlKey::new(*b"a secret of this test"),
            settings,
            Arc::new(clock.clone()),
        ));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let tasks = Tasks::new();
        let app = muster_file_store::file_routes::router(Arc::clone(&service));
        tasks.spawn("serve", async move { axum::serve(listener, app).await });
        Self {
            service,
            clock,
            http: Client::new(),
            base,
            engine: tables.engine,
            folder,
            tables,
            tasks,
        }
    }

    /// Announces a file of `alice` with a declared size.
    pub(crate) async fn announce(&self, size: u64, sha256: Option<Digest>) -> StoredFile {
        let new = NewFile {
            name: "data.bin".to_owned(),
            size: Some(size),
            max_size: None,
            sha256,
        };
        self.service.create("alice", new).await.unwrap()
    }

    /// Announces an output of unknown size.
    pub(crate) async fn output(&self) -> StoredFile {
        let new = NewFile {
            name: "out.bin".to_owned(),
            ..NewFile::default()
        };
        self.service.create("alice", new).await.unwrap()
    }

    pub(crate) fn url(&self, access: FileAccess, file: &StoredFile) -> String {
        self.service.url(access, file, &self.base).0
    }

    pub(crate) async fn put(&self, file: &StoredFile, body: Vec<u8>) -> Response {
        let request = self.http.put(self.url(FileAccess::Write, file)).body(body);
        request.send().await.unwrap()
    }

    pub(crate) async fn part(&self, file: &StoredFile, body: &[u8], first: u64, total: &str) -> Response {
        let range = format!("bytes {first}-{}/{total}", first + body.len() as u64 - 1);
        let request = self.http.put(self.url(FileAccess::Write, file));
        let request = request.header("content-range", range).body(body.to_vec());
        request.send().await.unwrap()
    }

    /// `Upload-Offset` in the answer to `HEAD`.
    pub(crate) async fn offset(&self, file: &StoredFile) -> u64 {
        let answer = self
            .http
            .head(self.url(FileAccess::Write, file))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 200);
        offset_of(&answer)
    }

    pub(crate) async fn get(&self, file: &StoredFile, headers: &[(&'static str, &str)]) -> Response {
        let mut request = self.http.get(self.url(FileAccess::Read, file));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.unwrap()
    }

    pub(crate) async fn content(&self, file: &StoredFile) -> Vec<u8> {
        let answer = self.get(file, &[]).await;
        assert_eq!(answer.status(), 200);
        answer.bytes().await.unwrap().to_vec()
    }

    /// The number of objects in the folder.
    pub(crate) fn objects(&self) -> usize {
        fn below(folder: &std::path::Path) -> usize {
            let entries = std::fs::read_dir(folder).unwrap().flatten();
            entries
                .map(|entry| match entry.path() {
                    path if path.is_dir() => below(&path),
                    _ => 1,
                })
                .sum()
        }
        below(&self.folder.path().join("files"))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.tasks.shutdown();
    }
}

pub(crate) fn offset_of(answer: &Response) -> u64 {
    let offset = answer.headers().get("upload-offset").unwrap();
    offset.to_str().unwrap().parse().unwrap()
}

/// Pseudo-random bytes, so that no two parts are equal.
pub(crate) fn noise(len: u64) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state & 0xFF) as u8
        })
        .collect()
}
