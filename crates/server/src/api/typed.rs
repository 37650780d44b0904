//! Typed requests: a handler's argument, read from a JSON body by the table of fields.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts as _, Request};
use axum::http::HeaderValue;
use axum::response::Response;

use crate::error::ApiError;
use crate::http::intake::{Room, SMALL};
use crate::http::middleware::Client;
use crate::request::fields::{Group, RequestFields, Row};
use crate::request::table::{EVERY_REQUEST, MODEL};
use crate::state::App;

/// Groups of a route's fields, in lists that routes share.
pub(crate) type Groups = &'static [&'static [&'static Group]];

/// A request of a route.
pub(crate) trait ApiRequest: Sized + Send + 'static {
    /// Groups of the fields that [`ApiRequest::read`] takes. Of two rows with one name the first counts.
    const GROUPS: Groups;
    /// Names of the required fields.
    const REQUIRED: &'static [&'static str];

    /// Reads the request. `key` is the client's API key.
    ///
    /// # Errors
    /// The first field that is wrong, absent or not supported.
    fn read(fields: &mut RequestFields, key: Option<&str>) -> Result<Self, ApiError>;

    /// The rows of all groups, a name once.
    fn rows() -> Vec<&'static dyn Row> {
        let mut rows: Vec<&'static dyn Row> = Vec::new();
        let groups = std::iter::once(&EVERY_REQUEST).chain(Self::GROUPS.iter().copied().flatten().copied());
        for row in groups.flat_map(|group| group.rows) {
            if rows.iter().all(|other| other.name() != row.name()) {
                rows.push(*row);
            }
        }
        rows
    }
}

/// A request with the names of its unknown fields and skipped parts, and the room of its body. A handler
/// drops the room once the prompt's tokens exist.
pub(crate) struct Typed<T>(pub T, pub Ignored, pub Room);

impl<T: ApiRequest> FromRequest<Arc<App>> for Typed<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Typed<T>, ApiError> {
        let (mut parts, body) = request.into_parts();
        let Ok(client) = Client::from_request_parts(&mut parts, app).await;
        let room = parts.extensions.remove().unwrap_or_default();
        // The middleware has read the body within its limits.
        let body = Bytes::from_request(Request::from_parts(parts, body), app).await.unwrap_or_default();
        let length = body.len();
        let read = |app: &App, client: &Client| {
            let mut fields = RequestFields::parse(&body)?;
            drop(body);
            app.check_model(fields.take(&MODEL)?)?;
            let request = T::read(&mut fields, client.key())?;
            Ok(Typed(request, Ignored(fields.unknown()), room))
        };
        if length <= SMALL {
            return read(app, &client);
        }
        let shared = Arc::clone(app);
        app.work(move |_| read(&shared, &client)).await
    }
}

/// Names of a request's unknown fields and skipped parts. They are accepted, and named in a header.
#[derive(Debug)]
pub(crate) struct Ignored(Vec<String>);

impl Ignored {
    /// Counts the fields.
    pub(crate) fn counted(self, app: &App) -> Ignored {
        app.metrics.ignored(self.0.len());
        self
    }

    /// Names the fields in a response's header.
    pub(crate) fn onto(self, mut response: Response) -> Response {
        let is_plain = |name: &str| name.bytes().all(|c| c.is_ascii_alphanumeric() || b"_-.".contains(&c));
        let plain = |name: &&String| name.len() <= 64 && is_plain(name);
        let names: Vec<&str> = self.0.iter().filter(plain).take(16).map(String::as_str).collect();
        if let Ok(value) = HeaderValue::from_str(&names.join(", "))
            && !names.is_empty()
        {
            response.headers_mut().insert("x-ottava-ignored", value);
        }
        response
    }
}
