//! The lines of earlier conversations, in the cache's folder: each is written as it is typed, so that conversations
//! beside each other and those that are killed keep theirs.

use std::path::PathBuf;

use rustyline::DefaultEditor;

use super::super::output;

/// The lines of earlier conversations: a convenience, without which lines are answered all the same.
pub struct History {
    /// None where there is no place for it, or it failed once.
    file: Option<PathBuf>,
}

impl History {
    /// What is kept of them becomes the editor's.
    pub fn load(editor: &mut DefaultEditor) -> History {
        let file = crate::env::cache_folder().map(|folder| folder.join("history"));
        if let Some(file) = &file {
            // A first conversation has none yet. What else is wrong the first line tells.
            let _ = file.parent().map(std::fs::create_dir_all);
            let _ = editor.load_history(file);
        }
        History { file }
    }

    /// Appends a line at once: a conversation that is killed keeps it, and so does one beside another.
    pub fn keep(&mut self, editor: &mut DefaultEditor, line: &str) {
        let is_new = editor.add_history_entry(line).unwrap_or(false);
        let Some(file) = self.file.as_deref().filter(|_| is_new) else { return };
        if let Err(error) = editor.append_history(file) {
            output::tell(format_args!("warning: {}: history is not kept: {error}", file.display()));
            self.file = None;
        }
    }
}
