//! Operations on directory trees, with an agent of Carrel.

use carrel_agent_client::AgentClientError;
use carrel_agent_client::protocol::payload::{
    CarrelFsDone, CarrelFsEvents, CarrelFsMatches, CarrelFsRequest, TreeCopy, TreeEvent, TreeEventKind, TreeGlob,
    TreeMatch, TreeWatch,
};

use crate::peer::connected_to_carrel;

fn found(path: &str) -> TreeMatch {
    TreeMatch { path: path.into(), line: None, text: None }
}

#[tokio::test]
async fn matches_arrive_one_by_one_and_the_final_result_has_their_count() {
    let (client, mut peer) = connected_to_carrel().await;
    let agent = async {
        let (id, request) = peer.expect::<CarrelFsRequest>().await;
        assert_eq!((request.op.tag(), request.user.as_deref()), ("Glob", Some("agbox")));
        peer.send(id, &CarrelFsMatches { matches: vec![found("a"), found("b")] }).await;
        peer.send(id, &CarrelFsMatches { matches: vec![] }).await;
        peer.send(id, &CarrelFsMatches { matches: vec![found("c")] }).await;
        peer.send(id, &CarrelFsDone { ok: true, count: 3, ..CarrelFsDone::default() }).await;
    };
    let glob = TreeGlob { root: "/".into(), pattern: "*".into(), hidden: false, limit: 0 };
    let calls = async {
        let mut stream = client.tree().on_behalf_of("agbox").glob(glob).await.unwrap();
        for path in ["a", "b", "c"] {
            assert_eq!(stream.next().await.unwrap(), Some(found(path)));
        }
        assert_eq!(stream.next().await.unwrap(), None);
        assert_eq!(stream.outcome().unwrap().count, 3);
    };
    tokio::join!(agent, calls);
}

#[tokio::test]
async fn changes_are_reported_until_the_watch_is_dropped() {
    let (client, mut peer) = connected_to_carrel().await;
    let change = TreeEvent { kind: TreeEventKind::Created, path: "/w/new".into(), to: None };
    let agent = async {
        let (id, _) = peer.expect::<CarrelFsRequest>().await;
        peer.send(id, &CarrelFsEvents { events: vec![change.clone()] }).await;
    };
    let watch = async {
        let mut stream = client.tree().watch(TreeWatch { path: "/w".into(), recursive: true }).await.unwrap();
        assert_eq!(stream.next().await.unwrap().as_ref(), Some(&change));
    };
    tokio::join!(agent, watch);
}

#[tokio::test]
async fn a_copy_that_fails_names_the_error_number() {
    let (client, mut peer) = connected_to_carrel().await;
    let agent = async {
        let (id, _) = peer.expect::<CarrelFsRequest>().await;
        let (error, errno_name) = (Some("there already".into()), Some("EEXIST".into()));
        peer.send(id, &CarrelFsDone { error, errno_name, ..CarrelFsDone::default() }).await;
    };
    let tree = client.tree();
    let copy = tree.copy(TreeCopy { src: "/a".into(), dst: "/b".into(), overwrite: false });
    let error = tokio::join!(copy, agent).0.unwrap_err();
    assert!(matches!(&error, AgentClientError::File(error) if error.operation == "Copy"), "{error}");
    assert_eq!(error.errno_name(), Some("EEXIST"));
}
