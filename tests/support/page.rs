//! Golden pages that show the normal state in full, and of other states only the differences.

/// Number of lines that are as usual (` 2=`, or ` =` if all are), and the other lines.
pub fn differing<'a>(lines: &'a [String], usual: &[String]) -> (String, Vec<&'a str>) {
    let other: Vec<_> = lines.iter().filter(|line| !usual.contains(line)).map(String::as_str).collect();
    let mark = match lines.len() - other.len() {
        0 => String::new(),
        count if other.is_empty() && count == usual.len() => " =".to_owned(),
        count => format!(" {count}="),
    };
    (mark, other)
}

/// Wraps a line at 118 columns, with a hanging indent.
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
