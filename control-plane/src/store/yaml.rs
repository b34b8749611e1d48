//! What a YAML text must not have, found before it is parsed: the parser's time rises with the square of it.

/// Our deepest value is seven deep.
const MAX_DEPTH: usize = 64;
/// `%YAML` and some `%TAG`s; a file of ours has none.
const MAX_DIRECTIVES: usize = 8;

/// # Errors
/// What there is too much of.
pub(super) fn check(text: &str) -> Result<(), String> {
    if text.lines().filter(|line| line.starts_with('%')).nth(MAX_DIRECTIVES).is_some() {
        return Err(format!("has more than {MAX_DIRECTIVES} directives, lines that begin with %"));
    }
    match too_deep(text) {
        Some(line) => Err(format!("is nested deeper than {MAX_DEPTH} levels at line {line}")),
        None => Ok(()),
    }
}

/// The line, from 1, at which `text` nests deeper than [`MAX_DEPTH`]. It reads as much YAML as that takes: what begins and
/// ends collections, and quotes and comments, in which nothing does.
fn too_deep(text: &str) -> Option<usize> {
    let mut flow = 0_usize;
    let mut quote = None;
    let mut blocks: Vec<usize> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if flow == 0 && quote.is_none() {
            open_blocks(line, &mut blocks);
        }
        scan(line, &mut flow, &mut quote);
        if flow + blocks.len() > MAX_DEPTH {
            return Some(i + 1);
        }
    }
    None
}

/// Block collections are told by indentation; a line such as `- - a` opens several.
fn open_blocks(line: &str, blocks: &mut Vec<usize>) {
    let mut column = 0;
    let mut rest = line;
    loop {
        let indented = rest.trim_start_matches(' ');
        column += rest.len() - indented.len();
        if indented.is_empty() || indented.starts_with('#') {
            return;
        }
        while blocks.last().is_some_and(|open| *open >= column) {
            blocks.pop();
        }
        blocks.push(column);
        let Some(next) = ["- ", "? ", ": "].iter().find_map(|sign| indented.strip_prefix(sign)) else { return };
        column += 2;
        rest = next;
    }
}

/// Flow collections opened and closed in one line.
fn scan(line: &str, flow: &mut usize, quote: &mut Option<char>) {
    // Where a token may begin: in the middle of a plain scalar of a block, brackets and quotes are text.
    let mut fresh = true;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (*quote, c) {
            (Some('"'), '\\') => drop(chars.next()),
            (Some(open), c) if c == open => *quote = None,
            (Some(_), _) => {}
            (None, '#') if fresh => return,
            (None, '"' | '\'') if fresh => *quote = Some(c),
            (None, '[' | '{') if fresh || *flow > 0 => *flow += 1,
            (None, ']' | '}') => *flow = flow.saturating_sub(1),
            (None, _) => {}
        }
        // Only white space begins a token in a block; in a flow the signs do too.
        fresh = c.is_whitespace() || (*flow > 0 && matches!(c, '[' | '{' | ',' | ':' | ']' | '}'));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_bounded_in_every_form() {
        let many = MAX_DEPTH + 1;
        let blocks: String = (0..many).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
        for deep in [
            format!("orgs: {}", "[".repeat(many)),
            format!("orgs: {}", "{a: ".repeat(many)),
            format!("orgs: {}", "[{\"a\":".repeat(many)),
            format!("orgs:\n{}", "[\n".repeat(many)),
            format!("orgs:\n  {}a", "- ".repeat(many)),
            format!("a: it's\nb: {}", "[".repeat(many)),
            format!("\"a]\": {}", "['x]', ".repeat(many)),
            format!("a: ['it''s', \"\\\"\", {}", "[".repeat(many)),
            blocks,
        ] {
            assert!(too_deep(&deep).is_some(), "{deep}");
        }
        assert_eq!(too_deep(&format!("a: 1\nb: {}", "[".repeat(many))), Some(2));
    }

    #[test]
    fn directives_are_few() {
        assert_eq!(check("%YAML 1.2\n---\na: 1\n"), Ok(()));
        assert!(check(&"%TAG !a! x\n".repeat(9)).is_err());
    }

    #[test]
    fn brackets_that_nest_nothing_do_not_count() {
        let many = 3 * MAX_DEPTH;
        for shallow in [
            "- [a, {b: c}]\n".repeat(many),
            format!("a: x{}", "[".repeat(many)),
            format!("a: \"{}\"", "[".repeat(many)),
            format!("a: '{}'", "[".repeat(many)),
            format!("# {}", "[".repeat(many)),
            "a:\n  b:\n    c: d\n".repeat(many),
            format!("[{}]", "[], ".repeat(many)),
        ] {
            assert_eq!(too_deep(&shallow), None, "{shallow}");
        }
    }
}
