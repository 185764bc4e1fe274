//! A browser: it keeps cookies, follows no redirect by itself, and reads pages.

use std::collections::BTreeMap;

use muster_protocol::account_api::WebLink;
use reqwest::header::{HeaderMap, LOCATION, SET_COOKIE};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};

use super::html::Html;
use crate::facilitator::Facilitator;
use crate::user::User;

pub(crate) struct Browser {
    http: Client,
    base: String,
    pub(crate) cookies: BTreeMap<String, String>,
}

/// An answer that was read.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn html(&self) -> Html {
        Html::read(&self.text)
    }

    /// The address that a redirect leads to.
    pub(crate) fn leads_to(&self) -> &str {
        assert_eq!(self.status, StatusCode::SEE_OTHER, "{self:?}");
        self.headers[LOCATION].to_str().unwrap()
    }
}

impl Browser {
    pub(crate) fn open(facilitator: &Facilitator) -> Self {
        let http = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .user_agent("TestBrowser/1 <b>")
            .build()
            .unwrap();
        Self {
            http,
            base: facilitator.url(""),
            cookies: BTreeMap::new(),
        }
    }

    /// A browser that is signed in by a link of this user.
    pub(crate) async fn signed_in(facilitator: &Facilitator, user: &User) -> Self {
        let mut browser = Self::open(facilitator);
        let link = browser.link_of(user).await;
        let answer = browser.use_link(&link).await;
        assert_eq!(answer.leads_to(), "/");
        browser
    }

    /// A link that this user draws, without the server's address.
    pub(crate) async fn link_of(&self, user: &User) -> String {
        let answer = user.send(Method::POST, "/api/v1/web-links/", None).await;
        assert_eq!(answer.status(), StatusCode::CREATED);
        let link: WebLink = answer.json().await.unwrap();
        link.url.strip_prefix(&self.base).unwrap().to_owned()
    }

    /// Opens a link and presses its button.
    pub(crate) async fn use_link(&mut self, link: &str) -> Answer {
        let page = self.get(link).await;
        assert_eq!(page.status, StatusCode::OK, "{page:?}");
        let (page, secret) = (page.html(), link.rsplit_once('=').unwrap().1);
        let token = page.field("form_token").to_owned();
        let fields = [("form_token", token.as_str()), ("link", secret)];
        self.post("/sign-in/link", &fields).await
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let cookies: Vec<_> = self
            .cookies
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        self.http
            .request(method, format!("{}{path}", self.base))
            .header("cookie", cookies.join("; "))
    }

    pub(crate) async fn send(&mut self, request: RequestBuilder) -> Answer {
        let response = request.send().await.unwrap();
        self.keep_cookies(&response);
        Answer {
            status: response.status(),
            headers: response.headers().clone(),
            text: response.text().await.unwrap(),
        }
    }

    fn keep_cookies(&mut self, response: &Response) {
        for set in response.headers().get_all(SET_COOKIE) {
            let (pair, rules) = set.to_str().unwrap().split_once("; ").unwrap();
            assert!(
                rules.ends_with("HttpOnly; SameSite=Strict") && rules.starts_with("Path=/;"),
                "{rules}"
            );
            let (name, value) = pair.split_once('=').unwrap();
            if rules.contains("Max-Age=0;") {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
        }
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    /// A page that must be there.
    pub(crate) async fn page(&mut self, path: &str) -> Html {
        let answer = self.get(path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {answer:?}");
        answer.html()
    }

    /// The token of this browser's forms.
    pub(crate) async fn token(&mut self) -> String {
        self.page("/usage").await.field("form_token").to_owned()
    }

    /// Sends a form exactly so.
    pub(crate) async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        self.send(self.form(path, fields)).await
    }

    pub(crate) fn form(&self, path: &str, fields: &[(&str, &str)]) -> RequestBuilder {
        let body = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        self.request(Method::POST, path)
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body)
    }

    /// Sends a form with the token of this browser.
    pub(crate) async fn submit(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let token = self.token().await;
        let mut all = vec![("form_token", token.as_str())];
        all.extend_from_slice(fields);
        self.post(path, &all).await
    }
}
