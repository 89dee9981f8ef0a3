//! Reads the tables of abi/*.def, and translates their C types to Rust. Shared by the build script and the tests.

/// The levels (RGAPS_LEVEL) that added functions; Kilted (2) added none to Jazzy's.
const LEVELS: [(&str, u32); 3] = [("humble", 0), ("jazzy", 1), ("lyrical", 3)];

/// A line `FUNCTION(since, need, result, name, (parameters))`.
#[derive(Clone, Debug)]
pub struct Function {
    /// The first RGAPS_LEVEL that has the function.
    pub level: u32,
    /// Whether an RMW that lacks it is refused.
    pub required: bool,
    /// The C type of its result.
    pub result: String,
    /// Its name.
    pub name: String,
    /// The C types of its parameters.
    pub parameters: Vec<String>,
}

/// A line of types.def: its macro's name and arguments.
#[derive(Clone, Debug)]
pub struct Entry {
    /// SCALAR, ENUM, CALLBACK, STRUCT, FIELD or CONSTANT.
    pub what: String,
    /// The text between the parentheses, split at commas outside inner ones.
    pub arguments: Vec<String>,
}

/// The functions of functions.def that a level has.
pub fn functions(text: &str, level: u32) -> Vec<Function> {
    let all = entries(text).into_iter().map(|entry| {
        let [since, need, result, name, parameters] = &entry.arguments[..] else {
            panic!("functions.def: five arguments are needed: {entry:?}")
        };
        let level = LEVELS.iter().find(|(name, _)| name == since);
        let (_, level) = level.unwrap_or_else(|| panic!("functions.def: {name}: unknown distro {since}"));
        assert!(["required", "optional"].contains(&need.as_str()), "functions.def: {name}: {need}");
        let parameters = inner_list(parameters);
        Function { level: *level, required: need == "required", result: result.clone(), name: name.clone(), parameters }
    });
    all.filter(|function| function.level <= level).collect()
}

/// The lines of a table.
pub fn entries(text: &str) -> Vec<Entry> {
    let lines = text.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()));
    let entries: Vec<Entry> = lines
        .map(|line| match line.strip_suffix(')').and_then(|line| line.split_once('(')) {
            Some((what, arguments)) => Entry { what: what.to_owned(), arguments: split(arguments) },
            None => panic!("a table has a malformed line: {line}"),
        })
        .collect();
    assert!(!entries.is_empty(), "a table is empty");
    entries
}

/// The types of a parenthesised list of parameters; none for `(void)`.
pub fn inner_list(parameters: &str) -> Vec<String> {
    let inner = parameters.trim_start_matches('(').trim_end_matches(')');
    if inner == "void" { Vec::new() } else { split(inner) }
}

fn split(text: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0_usize);
    for character in text.chars() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = parts.last_mut() {
            last.push(character);
        }
    }
    parts.into_iter().map(|part| part.trim().to_owned()).collect()
}

/// The name of the type that a C type is made of: `rmw_node_t` for `const rmw_node_t *`.
pub fn base(c_type: &str) -> &str {
    c_type.trim_start_matches("const ").trim_end_matches(['*', ' '])
}

/// A C type in Rust.
pub fn rust_type(c_type: &str) -> String {
    let pointers = c_type.matches('*').count();
    let base = match base(c_type) {
        "void" if pointers > 0 => "::core::ffi::c_void",
        "char" => "::core::ffi::c_char",
        "bool" => "bool",
        "size_t" => "usize",
        "uint8_t" => "u8",
        "int32_t" => "i32",
        "int64_t" => "i64",
        "uint64_t" => "u64",
        other => other,
    };
    // `const` applies to the innermost pointer's target.
    let innermost = if c_type.starts_with("const ") { "*const " } else { "*mut " };
    match pointers {
        0 => base.to_owned(),
        count => format!("{}{innermost}{base}", "*mut ".repeat(count - 1)),
    }
}
