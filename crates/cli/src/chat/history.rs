//! Line history of earlier conversations, in the cache folder. Each line is appended as it is typed, so that
//! concurrent and killed conversations keep theirs.

use std::path::PathBuf;

use rustyline::DefaultEditor;

use super::super::output;

/// Line history of earlier conversations. Its failures do not affect the conversation.
pub struct History {
    /// `None` without a cache folder, or after the first failed write.
    file: Option<PathBuf>,
}

impl History {
    /// Loads the stored lines into the editor.
    pub fn load(editor: &mut DefaultEditor) -> History {
        let file = crate::env::cache_folder().map(|folder| folder.join("history"));
        if let Some(file) = &file {
            // Before the first conversation there is no file. Other errors show up at the first append.
            let _ = file.parent().map(std::fs::create_dir_all);
            let _ = editor.load_history(file);
        }
        History { file }
    }

    /// Appends a line to the file at once.
    pub fn keep(&mut self, editor: &mut DefaultEditor, line: &str) {
        let is_new = editor.add_history_entry(line).unwrap_or(false);
        let Some(file) = self.file.as_deref().filter(|_| is_new) else { return };
        if let Err(error) = editor.append_history(file) {
            output::tell(format_args!("warning: {}: history is not kept: {error}", file.display()));
            self.file = None;
        }
    }
}
