//! Disks that the store does not know.

use carrel_control::provider::Orphan as DiscoveredSandbox;
use carrel_control::{Caller, Control};
use tonic::Status;

use crate::carrel::v1::{AdoptOrphanRequest, AdoptOrphanResponse, ListOrphansResponse, Orphan};
use crate::convert;
use crate::service::given;
use crate::status::refused;

pub(super) async fn list(control: &Control, caller: &Caller) -> Result<ListOrphansResponse, Status> {
    let orphans = control.orphans(caller).await.map_err(refused)?;
    Ok(ListOrphansResponse { orphans: orphans.into_iter().map(orphan).collect() })
}

pub(super) async fn adopt(
    control: &Control,
    caller: &Caller,
    request: AdoptOrphanRequest,
) -> Result<AdoptOrphanResponse, Status> {
    let id = given(request.sandbox_id);
    let sandbox = control.adopt_orphan(caller, &request.orphan, id.as_deref()).await.map_err(refused)?;
    let spec = control.spec(&sandbox).map_err(refused)?;
    Ok(AdoptOrphanResponse { sandbox: Some(convert::handle(&sandbox, &spec, caller.namespace())) })
}

fn orphan(found: DiscoveredSandbox) -> Orphan {
    let manifest = found.manifest.as_ref();
    Orphan {
        disk: found.disk,
        sandbox_id: manifest.map(|manifest| manifest.sandbox.clone()).unwrap_or_default(),
        image: manifest.map(|manifest| manifest.image.clone()).unwrap_or_default(),
        owner: manifest.map_or(0, |manifest| manifest.owner),
        running: found.running.is_some(),
        since: convert::timestamp_of(found.since),
        removed_at: found.removed_at.and_then(convert::timestamp_of),
    }
}
