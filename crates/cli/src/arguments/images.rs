//! Arguments of `image` and `prune`.

use std::time::Duration;

use carrel_fetch::PullPolicy;
use carrel_image::ImageRef;
use carrel_layers::Platform;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};

use super::parsers::duration;
use crate::environment::Variable;
use crate::label::Label;

/// Help for an image argument.
pub(crate) const IMAGE: &str = "Image: `host`, a name such as `python:3.12`, a path that begins with / or ./ (a root file system or its tar), \
                                oci:PATH, oci-archive:PATH or docker-archive:PATH";

/// `carrel image`.
#[derive(Args, Debug)]
pub(crate) struct ImageArguments {
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

/// Subcommands of `carrel image`.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// List local images
    Ls(ImageListArguments),
    /// Pull images from registries
    Pull(ImagePullArguments),
    /// Remove images that no sandbox uses
    Rm(ImageRemoveArguments),
    /// Import an image from a file or a directory
    Import(ImageImportArguments),
    /// Show details of images as JSON
    Inspect(ImageInspectArguments),
    /// Save the changes of a sandbox to its file system as an image
    Save(ImageSaveArguments),
    /// Resume a paused sandbox when the parent process exits
    #[command(hide = true)]
    ResumeOnExit(ResumeOnExitArguments),
}

/// `carrel image resume-on-exit`, which `carrel image save` starts.
#[derive(Args, Debug)]
pub(crate) struct ResumeOnExitArguments {
    /// Name of the sandbox
    pub(crate) sandbox: String,
}

/// `carrel image ls`.
#[derive(Args, Debug)]
pub(crate) struct ImageListArguments {
    /// Print only digests, one per line
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// `carrel image pull`.
#[derive(Args, Debug)]
pub(crate) struct ImagePullArguments {
    /// Platform, such as linux/arm64 [default: that of this host]
    #[arg(long, value_name = "OS/ARCH")]
    pub(crate) platform: Option<Platform>,
    /// When to pull from the registry: always, missing or never
    #[arg(long, value_enum, default_value_t = PullPolicyArgument::Always, value_name = "WHEN", hide_possible_values = true)]
    pub(crate) pull: PullPolicyArgument,
    /// Print only errors and the result
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Images to pull
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<ImageRef>,
}

/// `carrel image rm`.
#[derive(Args, Debug)]
pub(crate) struct ImageRemoveArguments {
    /// Images to remove, by name, digest or prefix of a digest
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<String>,
}

/// `carrel image import`.
#[derive(Args, Debug)]
pub(crate) struct ImageImportArguments {
    /// Print only errors and the result
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) config: ImageConfigArguments,
    /// Path of a root file system, of its tar, or of output of `docker save` or `skopeo copy`; format and compression are
    /// detected unless given by dir:, oci:, oci-archive: or docker-archive:
    pub(crate) source: ImageRef,
    /// Name for the image
    pub(crate) name: String,
}

/// `carrel image inspect`.
#[derive(Args, Debug)]
pub(crate) struct ImageInspectArguments {
    /// Images to show: one object for one image, an array for several
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<String>,
}

/// `carrel image save`.
#[derive(Args, Debug)]
#[command(after_help = SAVE_HELP)]
pub(crate) struct ImageSaveArguments {
    /// Push it to the registry in its name
    #[arg(long)]
    pub(crate) push: bool,
    /// Print only errors and the result
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) config: ImageConfigArguments,
    /// Name of the sandbox
    pub(crate) sandbox: String,
    /// Name for the image
    pub(crate) name: String,
}

const SAVE_HELP: &str = "\
A running sandbox is paused meanwhile, and resumes in any case. Its mounts and its project are not part of the image.

Examples:
  carrel image save desk tools:1
  carrel image save --cmd bash --push desk registry.example/team/tools:1";

/// The configuration of an image; what is not given stays as it was.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ImageConfigArguments {
    /// Default command, split into words as in a shell
    #[arg(long, value_name = "WORDS")]
    pub(crate) cmd: Option<String>,
    /// Prefix of every command, split into words as in a shell; '' for none
    #[arg(long, value_name = "WORDS")]
    pub(crate) entrypoint: Option<String>,
    /// Set an environment variable, or pass one through from this environment
    #[arg(short, long = "env", value_name = "KEY[=VALUE]", value_parser = OsStringValueParser::new().try_map(Variable::parse))]
    pub(crate) env: Vec<Variable>,
    /// Default user of commands
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub(crate) user: Option<String>,
    /// Default working directory of commands
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Add a label
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub(crate) labels: Vec<Label>,
}

/// `carrel prune`.
#[derive(Args, Debug)]
pub(crate) struct PruneArguments {
    /// Remove all unused images [default: only those without a name]
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Remove output of execs that have exited, also of deleted sandboxes, instead of images
    #[arg(long, conflicts_with = "all")]
    pub(crate) logs: bool,
    /// Remove only output that was last written longer ago, such as 168h
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "logs")]
    pub(crate) older_than: Option<Duration>,
}

/// When an image is pulled from a registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PullPolicyArgument {
    /// Even if the image is present
    Always,
    /// If the image is not present
    #[default]
    Missing,
    /// Never; fail if the image is not present
    Never,
}

// === impl PullPolicyArgument ===

impl From<PullPolicyArgument> for PullPolicy {
    fn from(pull: PullPolicyArgument) -> Self {
        match pull {
            PullPolicyArgument::Always => Self::Always,
            PullPolicyArgument::Missing => Self::Missing,
            PullPolicyArgument::Never => Self::Never,
        }
    }
}
