//! Content codings of request bodies: none is decoded.

use axum::http::{HeaderMap, StatusCode, header};

use crate::error::{ApiError, quoted};

/// Refuses a compressed body by its coding.
///
/// # Errors
/// Any coding but `identity`.
pub(crate) fn check(headers: &HeaderMap) -> Result<(), ApiError> {
    let codings = headers.get_all(header::CONTENT_ENCODING).iter();
    let codings = codings.flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    let plain = |coding: &&[u8]| coding.is_empty() || coding.eq_ignore_ascii_case(b"identity");
    match codings.map(<[u8]>::trim_ascii).find(|coding| !plain(coding)) {
        None => Ok(()),
        Some(found) => {
            let found = quoted(&String::from_utf8_lossy(found));
            let message =
                format!("Content-Encoding: expected identity, a body without compression, found {found}");
            Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn any_coding_in_any_header_is_refused_by_its_name() {
        let checked = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CONTENT_ENCODING, HeaderValue::from_static(value));
            }
            check(&headers)
        };
        for plain in [&[][..], &[""], &["identity"], &["Identity, identity"], &["identity", ""]] {
            assert!(checked(plain).is_ok(), "{plain:?}");
        }
        for (values, name) in [
            (&["gzip"][..], "gzip"),
            (&["identity, br"], "br"),
            (&["identity", "zstd"], "zstd"),
            (&["deflate,gzip"], "deflate"),
        ] {
            let error = checked(values).expect_err("refused");
            assert_eq!(error.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
            assert!(error.message().contains(&format!("found \"{name}\"")), "{}", error.message());
        }
    }
}
