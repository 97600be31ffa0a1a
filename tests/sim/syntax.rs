//! The part of Lua's syntax that the scripts use, to find what can be broken in them.

use std::fmt;
use std::ops::Range;

use redlatch::scripts::NamedScript;

/// A script with one piece of its text replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    pub script: &'static str,
    text: &'static str,
    /// The piece's statement, at the top level.
    statement: Range<usize>,
    place: Range<usize>,
    by: String,
}

impl Variant {
    /// The whole script.
    pub fn text(&self) -> String {
        let Range { start, end } = self.place;
        [&self.text[..start], &self.by, &self.text[end..]].concat()
    }

    /// The statement if several scripts share it, otherwise the script; the place in it, and the replacement.
    pub fn key(&self) -> (&'static str, Range<usize>, &str) {
        let statement = &self.text[self.statement.clone()];
        let is_shared = ["local function ", "local MARK", "local REMOVED_MAX", "local READERS"];
        if is_shared.iter().any(|start| statement.starts_with(start)) {
            let Range { start, end } = self.place;
            (statement, start - self.statement.start..end - self.statement.start, &self.by)
        } else {
            (self.script, self.place.clone(), &self.by)
        }
    }
}

impl fmt::Display for Variant {
    /// The place with its surroundings, and the replacement.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const AROUND: usize = 24;
        let Range { start, end } = self.place;
        let before = &self.text[start.saturating_sub(AROUND)..start];
        let after = &self.text[end..(end + AROUND).min(self.text.len())];
        write!(f, "{}: {before}[{} -> {}]{after}", self.script, &self.text[start..end], self.by)
    }
}

/// All breaks of a script: each statement removed, each condition fixed, each comparison, number and text
/// changed, each term and each last argument dropped, each pair of arguments swapped.
pub fn variants(script: &NamedScript) -> Vec<Variant> {
    let mut reader = Reader { text: script.text, tokens: tokens(script.text), at: 0, breaks: Vec::new() };
    let mut variants = Vec::new();
    while reader.at < reader.tokens.len() {
        let start = reader.at;
        reader.any_statement();
        let statement = reader.place(start, reader.at);
        let variant = |(place, by)| {
            let statement = statement.clone();
            Variant { script: script.name, text: script.text, statement, place, by }
        };
        variants.extend(reader.breaks.drain(..).map(variant));
    }
    variants
}

fn tokens(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let (mut tokens, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let start = at;
        let run = |from: usize, is_part: fn(&u8) -> bool| {
            from + bytes[from..].iter().take_while(|byte| is_part(byte)).count()
        };
        at = match bytes[at] {
            b' ' => {
                at += 1;
                continue;
            }
            b'\'' => at + 2 + bytes[at + 1..].iter().take_while(|byte| **byte != b'\'').count(),
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => run(at, |byte| byte.is_ascii_alphanumeric() || *byte == b'_'),
            b'0'..=b'9' => run(at, u8::is_ascii_digit),
            _ if ["==", "~=", "<=", ">=", ".."].contains(&text.get(at..at + 2).unwrap_or_default()) => at + 2,
            _ => at + 1,
        };
        tokens.push(start..at);
    }
    tokens
}

/// Operators, from those that bind least to those that bind most.
const LEVELS: [&[&str]; 6] =
    [&["or"], &["and"], &["<", ">", "<=", ">=", "~=", "=="], &[".."], &["+", "-"], &["*", "/", "%"]];

/// Replacements of single words.
const OTHERS: [(&str, &str); 14] = [
    ("==", "~="),
    ("~=", "=="),
    ("<", "<="),
    ("<=", "<"),
    (">", ">="),
    (">=", ">"),
    ("call", "pcall"),
    ("pcall", "call"),
    ("max", "min"),
    ("min", "max"),
    ("'zrange'", "'zrevrange'"),
    ("'zrevrange'", "'zrange'"),
    ("true", "false"),
    ("false", "true"),
];

struct Reader {
    text: &'static str,
    tokens: Vec<Range<usize>>,
    at: usize,
    breaks: Vec<(Range<usize>, String)>,
}

impl Reader {
    fn peek(&self) -> &'static str {
        self.tokens.get(self.at).map_or("", |token| &self.text[token.clone()])
    }

    /// Whether the next token is this one.
    fn next_is(&self, token: &str) -> bool {
        self.tokens.get(self.at + 1).is_some_and(|next| &self.text[next.clone()] == token)
    }

    /// Whether the last token is this one.
    fn follows(&self, token: &str) -> bool {
        self.at > 0 && &self.text[self.tokens[self.at - 1].clone()] == token
    }

    fn take(&mut self) -> &'static str {
        assert!(self.at < self.tokens.len(), "the end is not understood of {}", self.text);
        let token = self.peek();
        // A variable may have a function's name.
        let is_variable = token == "call" && !self.follows(".");
        if let Some((_, other)) = OTHERS.iter().find(|(word, _)| *word == token && !is_variable) {
            self.replace(self.at, self.at + 1, other);
        } else if token.starts_with('\'') {
            self.replace(self.at, self.at + 1, if token == "''" { "'x'" } else { "''" });
        }
        self.at += 1;
        token
    }

    fn is(&mut self, token: &str) -> bool {
        let is = self.peek() == token;
        if is {
            self.take();
        }
        is
    }

    fn demand(&mut self, token: &str) {
        assert_eq!(self.take(), token, "in {}", self.text);
    }

    /// The text from one token up to another, exclusive.
    fn place(&self, from: usize, to: usize) -> Range<usize> {
        self.tokens[from].start..self.tokens[to - 1].end
    }

    fn replace(&mut self, from: usize, to: usize, by: &str) {
        let place = self.place(from, to);
        self.breaks.push((place, by.to_owned()));
    }

    fn block(&mut self) {
        while !matches!(self.peek(), "end" | "else" | "elseif") {
            self.any_statement();
        }
    }

    fn any_statement(&mut self) {
        let start = self.at;
        self.statement();
        self.replace(start, self.at, "");
    }

    fn statement(&mut self) {
        match self.peek() {
            "if" => self.condition(),
            "for" | "while" => {
                if self.is("while") {
                    self.expression(0);
                } else {
                    while !matches!(self.take(), "in" | "=") {}
                    self.expressions();
                }
                self.demand("do");
                self.block();
                self.demand("end");
            }
            "return" => {
                self.take();
                if !matches!(self.peek(), "" | "end" | "else" | "elseif") {
                    self.expressions();
                }
            }
            "local" if self.next_is("function") => {
                while self.take() != ")" {}
                self.block();
                self.demand("end");
            }
            _ => {
                self.is("local");
                self.expressions();
                if self.is("=") {
                    self.expressions();
                }
            }
        }
    }

    fn condition(&mut self) {
        while matches!(self.peek(), "if" | "elseif") {
            self.take();
            let start = self.at;
            self.expression(0);
            self.replace(start, self.at, "true");
            self.replace(start, self.at, "false");
            self.demand("then");
            self.block();
        }
        if self.is("else") {
            self.block();
        }
        self.demand("end");
    }

    fn expressions(&mut self) {
        self.list(false);
    }

    /// Comma-separated elements; in a table, with optional names.
    fn list(&mut self, is_table: bool) {
        let mut before = None;
        loop {
            let start = self.at;
            self.expression(0);
            let is_named = is_table && self.is("=");
            if is_named {
                self.expression(0);
            } else if let Some(before) = before {
                self.swap(before, start);
            }
            if !self.is(",") {
                if before.is_some() {
                    self.replace(start - 1, self.at, "");
                }
                return;
            }
            before = Some(start);
        }
    }

    /// Swaps the last element with the one before it.
    fn swap(&mut self, first: usize, second: usize) {
        let text = |from, to| &self.text[self.place(from, to)];
        let (first_text, second_text) = (text(first, second - 1), text(second, self.at));
        // The order of two numbers does not matter here.
        let is_alike =
            first_text == second_text || first > 1 && ["max", "min"].contains(&text(first - 2, first - 1));
        if !is_alike {
            let swapped = format!("{second_text}, {first_text}");
            self.replace(first, self.at, &swapped);
        }
    }

    fn expression(&mut self, level: usize) {
        let Some(operators) = LEVELS.get(level) else { return self.operand() };
        let start = self.at;
        self.expression(level + 1);
        while operators.contains(&self.peek()) {
            let left_end = self.at;
            let operator = self.take();
            let right = self.at;
            self.expression(level + 1);
            let is_comparison = level == 2;
            if !is_comparison {
                let left = self.text[self.place(start, left_end)].to_owned();
                self.replace(start, self.at, &left);
            }
            if matches!(operator, "and" | "or" | "..") {
                let right = self.text[self.place(right, self.at)].to_owned();
                self.replace(start, self.at, &right);
            }
        }
    }

    fn operand(&mut self) {
        let start = self.at;
        match self.peek() {
            "not" | "-" | "#" => {
                self.take();
                let inner = self.at;
                self.operand();
                let inner = self.text[self.place(inner, self.at)].to_owned();
                return self.replace(start, self.at, &inner);
            }
            "(" => self.bracket(")"),
            "{" => self.bracket("}"),
            token => {
                if let Ok(number) = token.parse::<i64>() {
                    self.replace(start, start + 1, &(number + 1).to_string());
                    if number > 0 {
                        self.replace(start, start + 1, &(number - 1).to_string());
                    }
                }
                self.take();
            }
        }
        loop {
            match self.peek() {
                "." => {
                    self.take();
                    self.take();
                }
                "(" => self.bracket(")"),
                "[" => self.bracket("]"),
                _ => return,
            }
        }
    }

    /// Contents of brackets: arguments, an index, elements, or an expression.
    fn bracket(&mut self, end: &str) {
        self.take();
        if self.peek() != end {
            self.list(end == "}");
        }
        self.demand(end);
    }
}
