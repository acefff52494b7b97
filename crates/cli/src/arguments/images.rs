//! Words about images.

use std::time::Duration;

use carrel_fetch::PullPolicy;
use carrel_image::ImageRef;
use carrel_layers::Platform;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};

use super::parsers::patience;
use crate::environment::Variable;
use crate::label::Label;

/// What an image can be, for help.
pub(crate) const IMAGE: &str = "`host`, a name such as `python:3.12`, a path that begins with / or ./ (a root file system or its tar), \
                                oci:PATH, oci-archive:PATH or docker-archive:PATH";

/// `carrel image`.
#[derive(Args, Debug)]
pub(crate) struct ImageArguments {
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

/// What to do with images.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// List the images that are here
    Ls(ImageListArguments),
    /// Fetch images from registries
    Pull(ImagePullArguments),
    /// Remove images; what a sandbox needs is not removed
    Rm(ImageRemoveArguments),
    /// Take an image from a file or a directory, and give it a name
    Import(ImageImportArguments),
    /// Tell all that is known about images, as JSON
    Inspect(ImageInspectArguments),
    /// Make an image of what a sandbox has changed in its own
    Save(ImageSaveArguments),
    /// Let a sandbox go on when whoever started this is gone
    #[command(hide = true)]
    ResumeOnExit(ResumeOnExitArguments),
}

/// `carrel image resume-on-exit`, which `save` starts.
#[derive(Args, Debug)]
pub(crate) struct ResumeOnExitArguments {
    /// The sandbox
    pub(crate) sandbox: String,
}

/// `carrel image ls`.
#[derive(Args, Debug)]
pub(crate) struct ImageListArguments {
    /// Only digests, one on a line
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// `carrel image pull`.
#[derive(Args, Debug)]
pub(crate) struct ImagePullArguments {
    /// The platform, such as linux/arm64 [default: that of this host]
    #[arg(long, value_name = "OS/ARCH")]
    pub(crate) platform: Option<Platform>,
    /// When to ask the registry
    #[arg(long, value_enum, default_value_t = PullPolicyArgument::Always, value_name = "WHEN")]
    pub(crate) pull: PullPolicyArgument,
    /// Say nothing but errors and what came of it
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The images
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<ImageRef>,
}

/// `carrel image rm`.
#[derive(Args, Debug)]
pub(crate) struct ImageRemoveArguments {
    /// The images, by their names, or by their digests or the beginnings of those
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<String>,
}

/// `carrel image import`.
#[derive(Args, Debug)]
pub(crate) struct ImageImportArguments {
    /// Say nothing but errors and what came of it
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) config: ImageConfigArguments,
    /// The path of a root file system, of its tar, or of what `docker save` or `skopeo copy` wrote; what it is, and
    /// whether it is compressed, is found out unless it is said by dir:, oci:, oci-archive: or docker-archive:
    pub(crate) source: ImageRef,
    /// What it is called from then on
    pub(crate) name: String,
}

/// `carrel image inspect`.
#[derive(Args, Debug)]
pub(crate) struct ImageInspectArguments {
    /// The images: one object for one, an array for several
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<String>,
}

/// `carrel image save`.
#[derive(Args, Debug)]
#[command(after_help = SAVE_HELP)]
pub(crate) struct ImageSaveArguments {
    /// Send it to the registry that its name says
    #[arg(long)]
    pub(crate) push: bool,
    /// Say nothing but errors and what came of it
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) config: ImageConfigArguments,
    /// The sandbox
    pub(crate) sandbox: String,
    /// What the image is called from then on
    pub(crate) name: String,
}

const SAVE_HELP: &str = "\
A sandbox that runs is paused meanwhile, and goes on whatever comes of it. What is mounted in it, and its project, is not part of the image.

Examples:
  carrel image save desk tools:1
  carrel image save --cmd bash --push desk registry.example/team/tools:1";

/// How an image is to be run: what is not said stays as it was.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ImageConfigArguments {
    /// What runs if nothing is asked for, in words
    #[arg(long, value_name = "WORDS")]
    pub(crate) cmd: Option<String>,
    /// What every command begins with, in words; '' for nothing
    #[arg(long, value_name = "WORDS")]
    pub(crate) entrypoint: Option<String>,
    /// Set a variable, or pass one on from this environment
    #[arg(short, long = "env", value_name = "KEY[=VALUE]", value_parser = OsStringValueParser::new().try_map(Variable::parse))]
    pub(crate) env: Vec<Variable>,
    /// Who commands run as
    #[arg(short, long, value_name = "USER[:GROUP]")]
    pub(crate) user: Option<String>,
    /// Where commands start
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// A label
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub(crate) labels: Vec<Label>,
}

/// `carrel prune`.
#[derive(Args, Debug)]
pub(crate) struct PruneArguments {
    /// All images that nothing uses [default: those without a name]
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Remove the output of ended execs instead of images, of deleted sandboxes too
    #[arg(long, conflicts_with = "all")]
    pub(crate) logs: bool,
    /// Only output that was last written longer ago, such as 168h
    #[arg(long, value_name = "TIME", value_parser = patience, requires = "logs")]
    pub(crate) older_than: Option<Duration>,
}

/// When a registry is asked for an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PullPolicyArgument {
    /// Whether the image is here or not
    Always,
    /// If the image is not here
    #[default]
    Missing,
    /// Never
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
