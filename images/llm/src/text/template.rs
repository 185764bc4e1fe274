//! Chat templates: Jinja, as tokenizer_config.json carries them, with bounded work.

use std::path::Path;

use minijinja::{Environment, Error, ErrorKind, context};
use serde::{Deserialize, Serialize};

use super::TextError;
use crate::model::sha256;

/// Instructions that one rendering may take; Llama 3's template needs a few thousand for a long conversation.
const FUEL: u64 = 2_000_000;
/// For a model without a template: names, colons, blank lines.
const PLAIN: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n\n{% endfor %}\
    {% if add_generation_prompt %}assistant:{% endif %}";

/// One message of a conversation.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant`.
    pub role: String,
    /// The text of the message.
    pub content: String,
}

/// How a conversation becomes one text.
pub struct Template {
    environment: Environment<'static>,
    begin: String,
    end: String,
    digest: [u8; 32],
}

#[derive(Default, Deserialize)]
struct Config {
    chat_template: Option<String>,
    #[serde(default)]
    bos_token: Named,
    #[serde(default)]
    eos_token: Named,
}

/// A token's name, alone or as the content of an object.
#[derive(Default, Deserialize)]
#[serde(untagged)]
enum Named {
    Text(String),
    Token {
        content: String,
    },
    #[default]
    Absent,
}

impl Named {
    fn text(self) -> String {
        match self {
            Self::Text(text) | Self::Token { content: text } => text,
            Self::Absent => String::new(),
        }
    }
}

impl Template {
    /// Reads tokenizer_config.json; a plain template stands in where it or its template is missing.
    ///
    /// # Errors
    /// A file or a template that does not parse.
    pub fn load(file: &Path) -> Result<Self, TextError> {
        let broken = |what: String| TextError::Template(what);
        let config = match std::fs::read(file) {
            Ok(content) => serde_json::from_slice(&content).map_err(|error| broken(error.to_string()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Config::default(),
            Err(error) => return Err(broken(error.to_string())),
        };
        let source = config.chat_template.unwrap_or_else(|| PLAIN.to_owned());
        let digest = sha256(source.as_bytes());
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |what: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, what))
        });
        environment
            .add_template_owned("chat", source)
            .map_err(|error| broken(error.to_string()))?;
        Ok(Self {
            environment,
            begin: config.bos_token.text(),
            end: config.eos_token.text(),
            digest,
        })
    }

    /// sha256 of the template's text.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The text that the model goes on with.
    ///
    /// # Errors
    /// Renders the messages by the template; an error states the template's complaint, or that it takes too long.
    pub fn render(&self, messages: &[Message]) -> Result<String, TextError> {
        let broken = |error: Error| TextError::Template(error.to_string());
        let template = self.environment.get_template("chat").map_err(broken)?;
        template
            .render(context! {
                messages => messages,
                add_generation_prompt => true,
                bos_token => self.begin,
                eos_token => self.end,
            })
            .map_err(broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> Result<Template, TextError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer_config.json");
        let config =
            serde_json::json!({"chat_template": source, "eos_token": {"content": "<e>"}, "bos_token": null});
        std::fs::write(&file, config.to_string()).unwrap();
        Template::load(&file)
    }

    fn hello() -> Vec<Message> {
        vec![Message {
            role: "user".into(),
            content: " hello ".into(),
        }]
    }

    #[test]
    fn templates_are_jinja_as_python_writes_it() {
        let source = "{{ bos_token }}{% for m in messages %}[{{ m['role'].upper() }}] {{ m['content'].strip() }}{{ eos_token }}{% endfor %}";
        assert_eq!(
            template(source).unwrap().render(&hello()).unwrap(),
            "[USER] hello<e>"
        );
    }

    #[test]
    fn a_template_may_refuse_and_may_not_run_for_ever() {
        let refusing = template("{{ raise_exception('only one message') }}").unwrap();
        assert!(
            refusing
                .render(&hello())
                .unwrap_err()
                .to_string()
                .contains("only one message")
        );
        let endless =
            template("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}")
                .unwrap();
        assert!(endless.render(&hello()).is_err());
        assert!(template("{% for %}").is_err());
    }

    #[test]
    fn without_a_file_there_is_a_plain_one() {
        let plain = Template::load(Path::new("/nowhere/tokenizer_config.json")).unwrap();
        assert_eq!(plain.render(&hello()).unwrap(), "user:  hello \n\nassistant:");
    }
}
