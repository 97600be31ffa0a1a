//! Errors in pages and examples.

/// An unconfirmed release continues on its own, so no example returns it to its caller.
#[test]
fn no_example_fails_for_an_unconfirmed_release() {
    const FAILING: [&str; 6] = [
        ".release()?",
        ".resign()?",
        ".release_async().await?",
        ".release_async().await.map(drop)?",
        ".release_async())??",
        ".resign_async().await?",
    ];
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut places = vec![root.join("README.md"), root.join("docs"), root.join("examples"), root.join("src")];
    let (mut file_count, mut found) = (0, Vec::new());
    while let Some(place) = places.pop() {
        if place.is_dir() {
            let entries = std::fs::read_dir(&place).expect("a folder of the package");
            places.extend(entries.map(|entry| entry.expect("an entry").path()));
        } else if place.extension().is_some_and(|kind| kind == "md" || kind == "rs")
            && !place.ends_with(file!())
        {
            file_count += 1;
            let text = std::fs::read_to_string(&place).expect("text");
            let lines = text.lines().filter(|line| FAILING.iter().any(|call| line.contains(call)));
            found.extend(lines.map(|line| format!("{}: {line}", place.display())));
        }
    }
    assert!(file_count > 150, "the pages and sources are there: {file_count}");
    assert!(found.is_empty(), "{found:#?}");
}
