//! Certificate authorities of a file and of folders, as OpenSSL reads them: `SSL_CERT_FILE`, `SSL_CERT_DIR`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

/// Maximum bytes of a file of certificates.
const BYTES_MAX: u64 = 16 << 20;
/// Maximum number of files in a folder.
const FILES_MAX: usize = 10_000;

/// Certificates by their bytes: folders have links to the same file.
type Certificates = BTreeMap<Vec<u8>, Certificate<'static>>;

/// Reads the certificate authorities of a file and of folders; `None` if neither is given. They replace the
/// default ones.
pub fn authorities(file: Option<&Path>, folders: &[PathBuf]) -> Result<Option<RootCerts>, String> {
    if file.is_none() && folders.is_empty() {
        return Ok(None);
    }
    let mut found = Certificates::new();
    if let Some(path) = file {
        let of_file = |reason: String| format!("SSL_CERT_FILE: {}: {reason}", path.display());
        add(path, &mut found).map_err(of_file)?;
        if found.is_empty() {
            return Err(of_file("expected certificates in PEM form, found none".into()));
        }
    }
    for folder in folders {
        let of_folder = |error: std::io::Error| format!("SSL_CERT_DIR: {}: {error}", folder.display());
        for entry in folder.read_dir().map_err(of_folder)?.take(FILES_MAX) {
            // A folder may have files of other kinds, and links that lead nowhere.
            let _ = add(&entry.map_err(of_folder)?.path(), &mut found);
        }
    }
    if found.is_empty() {
        return Err("SSL_CERT_DIR: expected certificates in PEM form, found none".into());
    }
    Ok(Some(found.into_values().into()))
}

/// Adds the certificates of a file.
fn add(path: &Path, found: &mut Certificates) -> Result<(), String> {
    let mut pem = Vec::new();
    // A named pipe would block.
    let is_file = path.metadata().map_err(|error| error.to_string())?.is_file();
    if !is_file {
        return Err("expected a file".into());
    }
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(BYTES_MAX + 1).read_to_end(&mut pem).map_err(|error| error.to_string())?;
    if pem.len() as u64 > BYTES_MAX {
        return Err(format!("expected at most {BYTES_MAX} bytes"));
    }
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| error.to_string())? {
            found.insert(certificate.der().to_vec(), certificate);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are not looked into before a connection.
    const PEM: &str = "text before\n-----BEGIN CERTIFICATE-----\nAAECAw==\n-----END CERTIFICATE-----\n";

    fn count(roots: Result<Option<RootCerts>, String>) -> usize {
        match roots {
            Ok(Some(RootCerts::Specific(certificates))) => certificates.len(),
            other => panic!("expected certificates, found {other:?}"),
        }
    }

    #[test]
    fn certificates_come_from_a_file_and_from_folders_each_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, [PEM, &PEM.replace("AAEC", "BBBB"), PEM].concat()).unwrap();
        assert_eq!(count(authorities(Some(&file), &[])), 2);
        let inner = folder.path().join("certs");
        std::fs::create_dir_all(inner.join("folder")).unwrap();
        std::fs::write(inner.join("12345678.0"), PEM).unwrap();
        std::fs::write(inner.join("other.crt"), PEM.replace("AAEC", "CCCC")).unwrap();
        std::fs::write(inner.join("README"), "no certificate").unwrap();
        std::fs::write(inner.join("broken.pem"), "-----BEGIN CERTIFICATE-----\n?").unwrap();
        assert_eq!(count(authorities(None, std::slice::from_ref(&inner))), 2);
        assert_eq!(count(authorities(Some(&file), &[inner])), 3);
        assert!(matches!(authorities(None, &[]), Ok(None)));
    }

    #[test]
    fn files_without_certificates_are_errors_by_the_variable() {
        let folder = tempfile::tempdir().unwrap();
        let [empty, broken] = ["empty.pem", "broken.pem"].map(|name| folder.path().join(name));
        std::fs::write(&empty, "# none").unwrap();
        std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\n?").unwrap();
        for file in [&empty, &broken, &folder.path().join("missing.pem"), folder.path()] {
            let error = authorities(Some(file), &[]).expect_err("refused");
            assert!(
                error.starts_with("SSL_CERT_FILE: ") && error.contains(&*file.to_string_lossy()),
                "{error}"
            );
        }
        let none = folder.path().join("none");
        for folders in [vec![none.clone()], vec![folder.path().to_owned()]] {
            let error = authorities(None, &folders).expect_err("refused");
            assert!(error.starts_with("SSL_CERT_DIR: "), "{error}");
        }
    }
}
