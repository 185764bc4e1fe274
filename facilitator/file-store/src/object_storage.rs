//! The object store: a local folder, or a bucket of any S3-compatible service.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_process::private_folder;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload, RetryConfig};
use url::Url;
use uuid::Uuid;

use crate::bucket_client::{ReqwestConnector, Sha2Provider};

/// The longest time of retries against a bucket. It is shorter than the time limits of the clients that wait.
const RETRY_LIMIT: Duration = Duration::from_secs(20);
const RETRIES: usize = 5;

/// The parsed address of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAddress {
    /// A local folder, which is created if it is missing.
    Folder(PathBuf),
    /// A bucket of an S3-compatible service.
    Bucket {
        /// The name of the bucket.
        name: String,
        /// The beginning of all keys; may be empty.
        prefix: String,
        /// The service's URL; `None` for Amazon.
        endpoint: Option<String>,
        /// The bucket's region, if the environment does not give it.
        region: Option<String>,
    },
}

/// The text is no address of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write file:FOLDER, or s3://BUCKET/PREFIX?endpoint=https://HOST&region=NAME: {0}")]
pub struct StoreAddressError(&'static str);

/// The object store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The address is not valid.
    #[error(transparent)]
    Address(#[from] StoreAddressError),
    /// The folder cannot be created, or others than this process's user may use it.
    #[error("the folder {} cannot keep users' files", folder.display())]
    Folder {
        /// The folder of the address.
        folder: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// An operation failed, or the store did not answer.
    #[error("the file store {place} cannot {operation}")]
    Failed {
        /// The address of the store.
        place: String,
        /// The operation that failed.
        operation: &'static str,
        /// The library's error.
        source: object_store::Error,
    },
}

/// The credentials of a bucket, where they do not come from the environment.
#[derive(Clone)]
pub struct BucketCredentials {
    /// The access key's id, as in `AWS_ACCESS_KEY_ID`.
    pub id: String,
    /// The secret access key, as in `AWS_SECRET_ACCESS_KEY`.
    pub secret: String,
}

impl fmt::Debug for BucketCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BucketCredentials({}, …)", self.id)
    }
}

/// An open object store. Clones share it.
#[derive(Clone, Debug)]
pub struct ObjectStorage {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    place: String,
}

// === impl StoreAddress ===

impl StoreAddress {
    /// Parses an address of a configuration.
    ///
    /// # Errors
    /// The text is neither a folder's nor a bucket's address.
    pub fn parse(text: &str) -> Result<Self, StoreAddressError> {
        if let Some(folder) = text.strip_prefix("file:") {
            let folder = folder.strip_prefix("//").unwrap_or(folder);
            if folder.is_empty() {
                return Err(StoreAddressError("the folder is missing"));
            }
            return Ok(Self::Folder(folder.into()));
        }
        let url = Url::parse(text).map_err(|_| StoreAddressError("this is neither of them"))?;
        if url.scheme() != "s3" {
            return Err(StoreAddressError("its scheme is neither file nor s3"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(StoreAddressError("credentials belong in the environment"));
        }
        let name = url.host_str().ok_or(StoreAddressError("the bucket is missing"))?;
        let (mut endpoint, mut region) = (None, None);
        for (key, value) in url.query_pairs() {
            match key.as_ref() {
                "endpoint" => {
                    let http = ["http://", "https://"]
                        .iter()
                        .any(|scheme| value.starts_with(scheme));
                    if !http {
                        return Err(StoreAddressError("the endpoint begins with http:// or https://"));
                    }
                    endpoint = Some(value.trim_end_matches('/').to_owned());
                }
                "region" => region = Some(value.into_owned()),
                _ => return Err(StoreAddressError("the only parameters are endpoint and region")),
            }
        }
        Ok(Self::Bucket {
            name: name.to_owned(),
            prefix: url.path().trim_matches('/').to_owned(),
            endpoint,
            region,
        })
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "file:{}", folder.display()),
            Self::Bucket {
                name,
                prefix,
                endpoint,
                ..
            } => {
                let at = endpoint.as_deref().unwrap_or("Amazon");
                write!(f, "s3://{name}/{prefix} at {at}")
            }
        }
    }
}

// === impl ObjectStorage ===

impl ObjectStorage {
    /// Opens the store at an address, and checks that objects can be written, read and deleted. The credentials of a
    /// bucket come from the environment.
    ///
    /// # Errors
    /// The address is not valid, or one of the operations failed.
    pub async fn open(address: &str) -> Result<Self, StorageError> {
        Self::open_as(address, None).await
    }

    /// Opens the store as [`Self::open`] does, with these credentials.
    ///
    /// # Errors
    /// See [`Self::open`].
    pub async fn open_as(
        address: &str,
        credentials: Option<BucketCredentials>,
    ) -> Result<Self, StorageError> {
        let place = StoreAddress::parse(address)?;
        let storage = Self::build(&place, credentials)?;
        let probe = format!("probe/{}", Uuid::new_v4());
        storage.put(&probe, vec![Bytes::from_static(b"probe")]).await?;
        storage.get(&probe, 0..5).await?;
        storage.delete(&probe).await?;
        Ok(storage)
    }

    fn build(place: &StoreAddress, credentials: Option<BucketCredentials>) -> Result<Self, StorageError> {
        let failed = |source| StorageError::Failed {
            place: place.to_string(),
            operation: "be opened",
            source,
        };
        let (store, prefix): (Arc<dyn ObjectStore>, _) = match place {
            StoreAddress::Folder(folder) => {
                // The files are users' own: nobody else on this machine reads them.
                private_folder::create(folder).map_err(|source| StorageError::Folder {
                    folder: folder.clone(),
                    source,
                })?;
                let local = LocalFileSystem::new_with_prefix(folder).map_err(failed)?;
                // Acknowledged bytes must survive a power cut, as they do in a bucket.
                (Arc::new(local.with_fsync(true).with_automatic_cleanup(true)), "")
            }
            StoreAddress::Bucket {
                name,
                prefix,
                endpoint,
                region,
            } => {
                let mut builder = AmazonS3Builder::from_env()
                    .with_bucket_name(name)
                    .with_http_connector(ReqwestConnector)
                    .with_crypto_provider(Arc::new(Sha2Provider))
                    .with_retry(RetryConfig {
                        max_retries: RETRIES,
                        retry_timeout: RETRY_LIMIT,
                        ..RetryConfig::default()
                    });
                if let Some(BucketCredentials { id, secret }) = credentials {
                    builder = builder.with_access_key_id(id).with_secret_access_key(secret);
                }
                if let Some(region) = region {
                    builder = builder.with_region(region);
                }
                if let Some(endpoint) = endpoint {
                    builder = builder
                        .with_endpoint(endpoint)
                        .with_allow_http(endpoint.starts_with("http://"));
                }
                (Arc::new(builder.build().map_err(failed)?), prefix.as_str())
            }
        };
        Ok(Self {
            store,
            prefix: Path::from(prefix),
            place: place.to_string(),
        })
    }

    fn path(&self, name: &str) -> Path {
        name.split('/')
            .fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn failed(&self, operation: &'static str) -> impl FnOnce(object_store::Error) -> StorageError {
        let place = self.place.clone();
        move |source| StorageError::Failed {
            place,
            operation,
            source,
        }
    }

    /// Stores an object durably. An object with the same name is replaced.
    ///
    /// # Errors
    /// The store failed. The object may exist or not.
    pub async fn put(&self, name: &str, pieces: Vec<Bytes>) -> Result<(), StorageError> {
        let payload: PutPayload = pieces.into_iter().collect();
        let put = self.store.put(&self.path(name), payload).await;
        put.map(drop).map_err(self.failed("be written to"))
    }

    /// Reads the bytes `range` of an object.
    ///
    /// # Errors
    /// There is no such object, it is shorter than the range, or the store failed.
    pub async fn get(&self, name: &str, range: Range<u64>) -> Result<Bytes, StorageError> {
        let got = self.store.get_range(&self.path(name), range).await;
        got.map_err(self.failed("be read from"))
    }

    /// Deletes an object. A missing object is no error.
    ///
    /// # Errors
    /// The store failed.
    pub async fn delete(&self, name: &str) -> Result<(), StorageError> {
        match self.store.delete(&self.path(name)).await {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            deleted => deleted.map_err(self.failed("be deleted from")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_folders_or_buckets() {
        assert_eq!(
            StoreAddress::parse("file:///var/lib/x").unwrap(),
            StoreAddress::Folder("/var/lib/x".into())
        );
        assert_eq!(
            StoreAddress::parse("file:x/y").unwrap(),
            StoreAddress::Folder("x/y".into())
        );
        let bucket =
            StoreAddress::parse("s3://jobs/files/?endpoint=http://127.0.0.1:9000/&region=eu-1").unwrap();
        assert_eq!(
            bucket,
            StoreAddress::Bucket {
                name: "jobs".to_owned(),
                prefix: "files".to_owned(),
                endpoint: Some("http://127.0.0.1:9000".to_owned()),
                region: Some("eu-1".to_owned()),
            }
        );
        for wrong in [
            "",
            "file:",
            "/var/lib/x",
            "https://x",
            "s3://",
            "s3://b?x=1",
            "s3://b?endpoint=ftp://x",
            "s3://key:secret@b",
        ] {
            assert!(StoreAddress::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_folder_that_others_may_write_keeps_nothing() {
        use std::os::unix::fs::PermissionsExt as _;
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("files");
        let address = format!("file:{}", folder.display());
        ObjectStorage::open(&address).await.unwrap();
        let mode = |folder: &std::path::Path| std::fs::metadata(folder).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o770)).unwrap();
        let refused = ObjectStorage::open(&address).await.unwrap_err();
        let words = muster_process::error::Causes(&refused).to_string();
        assert!(words.contains("chmod 700"), "{words}");
    }

    #[tokio::test]
    async fn a_folder_keeps_what_it_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("file:{}", folder.path().join("made").display());
        let storage = ObjectStorage::open(&address).await.unwrap();
        let pieces = vec![Bytes::from_static(b"ab"), Bytes::from_static(b"cdef")];
        storage.put("upload/0", pieces).await.unwrap();
        assert_eq!(storage.get("upload/0", 1..4).await.unwrap(), "bcd");
        storage.delete("upload/0").await.unwrap();
        storage.delete("upload/0").await.unwrap();
        let error = storage.get("upload/0", 0..1).await.unwrap_err();
        assert!(error.to_string().contains("be read from"), "{error}");
        let left = std::fs::read_dir(folder.path().join("made")).unwrap().count();
        assert_eq!(left, 0, "empty folders go too");
    }
}
