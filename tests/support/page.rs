//! Golden pages that show one state whole, and of the other states only what differs.

/// How many of a step's lines are as when all is well (` 2=`, or ` =` for all of them), and the other lines.
pub fn differing<'a>(lines: &'a [String], usual: &[String]) -> (String, Vec<&'a str>) {
    let other: Vec<_> = lines.iter().filter(|line| !usual.contains(line)).map(String::as_str).collect();
    let mark = match lines.len() - other.len() {
        0 => String::new(),
        count if other.is_empty() && count == usual.len() => " =".to_owned(),
        count => format!(" {count}="),
    };
    (mark, other)
}

/// Wraps a line at 118 columns; the rest is indented further.
pub fn wrapped(indent: usize, line: &str) -> String {
    let mut page = " ".repeat(indent);
    let mut width = indent;
    for (index, word) in line.split(' ').enumerate() {
        let size = word.chars().count();
        if index > 0 && width + 1 + size > 118 {
            page += &format!("\n{}", " ".repeat(indent + 4));
            width = indent + 4;
        } else if index > 0 {
            page.push(' ');
            width += 1;
        }
        page += word;
        width += size;
    }
    page + "\n"
}
