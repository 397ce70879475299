//! A model as the sidecar knows it: profile with tokenizer, shared by all workers that load it.

use std::collections::HashMap;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokenizers::Tokenizer;

use crate::profile::{Profile, ProfileError};

/// Immutable once read.
pub struct Model {
    pub digest: String,
    pub profile: Profile,
    /// Neither cuts nor pads: the profile alone sets lengths.
    pub tokenizer: Tokenizer,
}

/// A model whose files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error("{}: {what}", .path.display())]
    Tokenizer { path: PathBuf, what: String },
    #[error("{}: adds {found} special tokens to a text, but the profile's encode.special_tokens is {expected}", .path.display())]
    SpecialTokens {
        path: PathBuf,
        found: usize,
        expected: usize,
    },
    #[error("this device has the {runtime} runtime, but the profile's runtimes are {}", .named.join(", "))]
    Runtime {
        runtime: &'static str,
        named: Vec<String>,
    },
}

impl Model {
    /// Reads profile and tokenizer. Blocks on the disk, and some 50 ms of CPU for a large vocabulary.
    pub fn read(digest: &str, profile_json: &str, folder: &Path) -> Result<Self, ModelError> {
        let profile = Profile::parse(profile_json)?;
        let path = folder.join("tokenizer.json");
        let broken = |what: String| ModelError::Tokenizer {
            path: path.clone(),
            what,
        };
        let json = std::fs::read(&path).map_err(|error| broken(error.to_string()))?;
        // Some files that are JSON and no tokenizer make it panic.
        let mut tokenizer = catch_unwind(|| Tokenizer::from_bytes(json))
            .map_err(|_| broken("it makes the tokenizer panic".to_owned()))?
            .map_err(|error| broken(error.to_string()))?;
        tokenizer
            .with_truncation(None)
            .map_err(|error| broken(error.to_string()))?
            .with_padding(None);
        let found = special_tokens(&tokenizer).map_err(|error| broken(error.to_string()))?;
        let expected = profile.encode.special_tokens;
        if found != expected {
            return Err(ModelError::SpecialTokens {
                path,
                found,
                expected,
            });
        }
        Ok(Self {
            digest: digest.to_owned(),
            profile,
            tokenizer,
        })
    }

    /// Checks that a runtime is one of those that may run it.
    pub fn check_runtime(&self, runtime: &'static str) -> Result<(), ModelError> {
        let named = &self.profile.runtimes;
        if named.iter().any(|name| name == runtime) {
            return Ok(());
        }
        let named = named.clone();
        Err(ModelError::Runtime { runtime, named })
    }
}

fn special_tokens(tokenizer: &Tokenizer) -> tokenizers::Result<usize> {
    let with = tokenizer.encode("a", true)?.len();
    let without = tokenizer.encode("a", false)?.len();
    Ok(with - without)
}

/// The models in use, by digest, so that the workers of a machine share them.
#[derive(Default)]
pub struct Catalogue {
    models: Mutex<HashMap<String, Weak<Model>>>,
}

impl Catalogue {
    /// The model, read if no worker uses it yet. Blocks; others who want it meanwhile wait for it.
    pub fn get(
        &self,
        digest: &str,
        profile_json: &str,
        folder: &Path,
    ) -> Result<Arc<Model>, ModelError> {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = models.get(digest).and_then(Weak::upgrade) {
            return Ok(model);
        }
        let model = Arc::new(Model::read(digest, profile_json, folder)?);
        models.retain(|_, model| model.strong_count() > 0);
        models.insert(digest.to_owned(), Arc::downgrade(&model));
        Ok(model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MINILM_JSON, minilm_folder};

    #[test]
    fn workers_share_a_model_while_one_of_them_has_it() {
        let catalogue = Catalogue::default();
        let get = || catalogue.get("d", MINILM_JSON, &minilm_folder()).unwrap();
        let (one, two) = (get(), get());
        assert!(Arc::ptr_eq(&one, &two));
        assert!(one.tokenizer.get_truncation().is_none() && one.tokenizer.get_padding().is_none());
    }

    #[test]
    fn what_is_wrong_names_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Model::read("d", MINILM_JSON, folder.path()).err().unwrap();
        assert!(
            missing.to_string().contains("tokenizer.json: No such file"),
            "{missing}"
        );
        std::fs::write(folder.path().join("tokenizer.json"), "{").unwrap();
        let broken = Model::read("d", MINILM_JSON, folder.path()).err().unwrap();
        assert!(broken.to_string().contains("tokenizer.json: "), "{broken}");
        let three = MINILM_JSON.replace("\"special_tokens\":2", "\"special_tokens\":3");
        let counted = Model::read("d", &three, &minilm_folder()).err().unwrap();
        assert!(
            counted.to_string().contains("adds 2 special tokens"),
            "{counted}"
        );
    }
}
