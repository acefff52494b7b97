//! Operations on trees of files, in the private generation.

use carrel_agent_client::AgentClient;
use carrel_agent_client::protocol::payload::{
    TreeCopy, TreeEventKind, TreeGlob, TreeGrep, TreeMatch, TreeMove, TreeWatch,
};
use carrel_tests::{Agentd, run, shell};

async fn project(agentd: &Agentd, client: &AgentClient) -> String {
    let root = agentd.path("project");
    let script = format!(
        "mkdir -p {root}/src/deep {root}/.git && cd {root} && printf 'fn main() {{\\n  todo\\n}}\\n' > src/main.rs \
         && echo 'a Needle here' > src/deep/lib.rs && echo needle > .git/config && echo x > README.md \
         && printf 'needle\\0' > binary && ln -s src/main.rs link && chmod 750 src/deep && mkfifo pipe"
    );
    let output = client.run(shell(&script), "").await.unwrap();
    assert_eq!(output.code, 0, "{}", String::from_utf8_lossy(&output.stderr));
    root
}

async fn glob(client: &AgentClient, root: &str, pattern: &str, hidden: bool, limit: u64) -> Vec<String> {
    let glob = TreeGlob { root: root.into(), pattern: pattern.into(), hidden, limit };
    let mut stream = client.tree().glob(glob).await.unwrap();
    let mut found = Vec::new();
    while let Some(TreeMatch { path, .. }) = stream.next().await.unwrap() {
        found.push(path.strip_prefix(&format!("{root}/")).unwrap().to_owned());
    }
    found.sort();
    found
}

//= carrel.files-trees-connections.generation-11-watch-glob
#[test]
fn glob_finds_entries_by_name() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let root = project(&agentd, &client).await;
        assert_eq!(glob(&client, &root, "**/*.rs", false, 0).await, ["src/deep/lib.rs", "src/main.rs"]);
        assert_eq!(glob(&client, &root, "*", false, 0).await, ["README.md", "binary", "link", "pipe", "src"]);
        assert_eq!(glob(&client, &root, "**/config", true, 0).await, [".git/config"]);
        assert_eq!(glob(&client, &root, ".git/*", false, 0).await, [".git/config"]);
        assert_eq!(glob(&client, &root, "**", false, 2).await.len(), 2);
        let refused = client.tree().glob(TreeGlob { root, pattern: "[".into(), hidden: false, limit: 0 }).await;
        let error = match refused {
            Ok(mut stream) => stream.next().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(error.to_string().contains("pattern"), "{error}");
    });
}

#[test]
fn a_result_that_a_limit_truncated_says_so() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let root = agentd.path("many");
        client.run(shell(&format!("mkdir {root}; for i in 1 2 3 4 5; do echo x > {root}/$i; done")), "").await.unwrap();
        for (limit, count, truncated) in [(2, 2, true), (5, 5, false), (9, 5, false), (0, 5, false)] {
            let glob = TreeGlob { root: root.clone(), pattern: "*".into(), hidden: false, limit };
            let mut stream = client.tree().glob(glob).await.unwrap();
            while stream.next().await.unwrap().is_some() {}
            let outcome = stream.outcome().unwrap();
            assert_eq!((outcome.count, outcome.truncated), (count, truncated), "limit {limit}");
        }
    });
}

//= carrel.files-trees-connections.generation-11-watch-glob
#[test]
fn grep_finds_lines_by_content() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let root = project(&agentd, &client).await;
        let grep = |pattern: &str, literal, ignore_case, glob: Option<&str>| TreeGrep {
            root: root.clone(),
            pattern: pattern.into(),
            literal,
            ignore_case,
            glob: glob.map(str::to_owned),
            hidden: false,
            limit: 0,
        };
        let found = async |grep: TreeGrep| {
            let mut stream = client.tree().grep(grep).await.unwrap();
            let mut found = Vec::new();
            while let Some(one) = stream.next().await.unwrap() {
                let path = one.path.strip_prefix(&format!("{root}/")).unwrap().to_owned();
                found.push((path, one.line.unwrap(), one.text.unwrap()));
            }
            found
        };
        // Without options, grep skips hidden and binary files and does not ignore case.
        assert_eq!(found(grep("needle", true, false, None)).await, []);
        let line = ("src/deep/lib.rs".to_owned(), 1, "a Needle here".to_owned());
        assert_eq!(found(grep("needle", true, true, None)).await, std::slice::from_ref(&line));
        assert_eq!(found(grep("N[e]+dle\\b", false, false, None)).await, [line]);
        assert_eq!(
            found(grep("todo", false, false, Some("**/*.rs"))).await,
            [("src/main.rs".into(), 2, "  todo".into())]
        );
        assert_eq!(found(grep("todo", false, false, Some("*.md"))).await, []);
    });
}

//= carrel.files-trees-connections.generation-11-watch-glob
#[test]
fn trees_are_copied_and_moved_completely() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let root = project(&agentd, &client).await;
        let (copy, moved) = (agentd.path("copy"), agentd.path("moved"));
        let tree = client.tree();
        tree.copy(TreeCopy { src: root.clone(), dst: copy.clone(), overwrite: false }).await.unwrap();
        let same = format!("rm {root}/pipe; diff -r --no-dereference {root} {copy} && stat -c %a {copy}/src/deep");
        assert_eq!(client.run(shell(&same), "").await.unwrap().stdout, b"750\n");
        let again = tree.copy(TreeCopy { src: root.clone(), dst: copy.clone(), overwrite: false }).await;
        assert_eq!(again.unwrap_err().errno_name(), Some("EEXIST"));
        tree.copy(TreeCopy { src: root.clone(), dst: copy.clone(), overwrite: true }).await.unwrap();
        let inside = TreeCopy { src: root.clone(), dst: format!("{root}/src/inside"), overwrite: false };
        assert!(tree.copy(inside).await.unwrap_err().to_string().contains("into itself"));

        tree.rename(TreeMove { src: copy.clone(), dst: moved.clone(), overwrite: false }).await.unwrap();
        assert!(!std::path::Path::new(&copy).exists());
        let refused = TreeMove { src: root.clone(), dst: moved.clone(), overwrite: false };
        assert_eq!(tree.rename(refused).await.unwrap_err().errno_name(), Some("EEXIST"));
        // To another file system, where nothing can be renamed.
        let shm = tempfile::tempdir_in("/dev/shm").unwrap();
        let far = shm.path().join("far").to_str().unwrap().to_owned();
        tree.rename(TreeMove { src: moved.clone(), dst: far.clone(), overwrite: false }).await.unwrap();
        assert!(!std::path::Path::new(&moved).exists());
        assert_eq!(client.run(shell(&format!("diff -r --no-dereference {root} {far}")), "").await.unwrap().code, 0);
    });
}

#[test]
fn a_large_tree_that_is_moved_in_is_reported_completely() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let (watched, aside) = (agentd.path("watched"), agentd.path("aside"));
        let fill = format!(
            "mkdir {watched} {aside} && cd {aside} && seq -f 'a-rather-long-name-for-a-file-%06g' 20000 | xargs touch"
        );
        assert_eq!(client.run(shell(&fill), "").await.unwrap().code, 0);
        let watch = TreeWatch { path: watched.clone(), recursive: true };
        let mut events = client.tree().watch(watch).await.unwrap();
        client.run(shell(&format!("mv {aside} {watched}/in")), "").await.unwrap();
        let mut files = 0;
        while files < 20_000 {
            let event = events.next().await.unwrap().unwrap();
            assert_eq!(event.kind, TreeEventKind::Created, "{event:?}");
            files += u32::from(event.path.contains("/in/"));
        }
    });
}

//= carrel.files-trees-connections.generation-11-watch-glob
#[test]
fn changes_are_reported_as_they_happen() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let root = project(&agentd, &client).await;
        let watch = TreeWatch { path: root.clone(), recursive: true };
        let mut events = client.tree().watch(watch).await.unwrap();
        let script = format!(
            "mkdir {root}/new && echo x > {root}/new/file && mv {root}/README.md {root}/src/R && rm {root}/link"
        );
        client.run(shell(&script), "").await.unwrap();
        let mut received = Vec::new();
        let done = |received: &Vec<(TreeEventKind, String, Option<String>)>| {
            received.iter().any(|(kind, path, _)| *kind == TreeEventKind::Removed && path.ends_with("/link"))
                && received.iter().any(|(_, path, _)| path.ends_with("/new/file"))
        };
        while !done(&received) {
            let event = events.next().await.unwrap().unwrap();
            received.push((event.kind, event.path, event.to));
        }
        let moved = (TreeEventKind::Moved, format!("{root}/README.md"), Some(format!("{root}/src/R")));
        assert!(received.contains(&moved), "{received:?}");
        assert!(received.contains(&(TreeEventKind::Created, format!("{root}/new"), None)), "{received:?}");
        drop(events);
        client.ping().await.unwrap();
    });
}
