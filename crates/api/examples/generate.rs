//! Generates `src/generated` from `proto/` without `protoc`: `generate DIRECTORY`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use prost_reflect::prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let into = env::args_os().nth(1).map(PathBuf::from).ok_or("give the directory to write into")?;
    generate(&into)
}

/// Writes the types and the descriptors of both packages to a directory.
pub(crate) fn generate(into: &Path) -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    // Published clients know the file as `service.proto`, without a directory.
    let mut compiler = protox::Compiler::new([root.join("agbox/v1"), root])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(["service.proto", "carrel/v1/sandboxes.proto"])?;
    fs::create_dir_all(into)?;
    let files = compiler.file_descriptor_set();
    // Maps are sorted by key, so that equal messages have equal bytes. Streamed bytes are not copied.
    let builder = tonic_prost_build::configure().out_dir(into).btree_map(".").bytes(".carrel.v1");
    builder.emit_rerun_if_changed(false).compile_fds(files)?;
    // Reflection needs no comments.
    let bare = compiler.include_source_info(false).file_descriptor_set();
    fs::write(into.join("descriptors.bin"), bare.encode_to_vec())?;
    fs::rename(into.join("agbox.v1.rs"), into.join("agbox_v1.rs")).or_else(absent)?;
    fs::rename(into.join("carrel.v1.rs"), into.join("carrel_v1.rs")).or_else(absent)?;
    Ok(())
}

fn absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
