//! What the operating system does to a process: it refuses bytes, or ends it.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use oases_train::checkpoint::{Checkpoints, Metadata, TensorSpec};
use oases_train::run_dir::RunDir;

use crate::child;

fn save(checkpoints: &Checkpoints, step: u64, numbers: usize) -> oases_train::Result<std::path::PathBuf> {
    let metadata = Metadata { step, ..Metadata::default() };
    let draft = checkpoints.begin(&metadata, &[TensorSpec::new("w", [numbers])])?;
    draft.write_whole("w", &vec![1.0; numbers])?;
    draft.publish()?;
    Ok(checkpoints.path(step))
}

/// The limit on a file's size is the one way to have the kernel refuse bytes without being root.
#[test]
fn a_checkpoint_that_does_not_fit_leaves_the_last_good_one() {
    let dir = tempfile::tempdir().unwrap();
    save(&Checkpoints::open(dir.path()).unwrap(), 1, 10).unwrap();
    let setup = "trap '' XFSZ; ulimit -f 64";
    let mut process = child::command_after(setup, "processes::write_too_much", dir.path()).spawn().unwrap();
    let mut output = String::new();
    process.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(process.wait().unwrap().success(), "{output}");
    let path = dir.path().join("step-00000002.safetensors");
    assert!(
        output.contains(&format!("cannot write checkpoint {}: File too large", path.display())),
        "{output}"
    );
    assert!(output.contains("hint: free some space"), "{output}");
    let names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["step-00000001.safetensors"]);
    let latest = Checkpoints::view(dir.path()).latest().unwrap().unwrap();
    assert_eq!(latest.checkpoint.metadata().step, 1);
}

#[test]
fn write_too_much() {
    let Some(folder) = child::folder() else { return };
    let error = save(&Checkpoints::open(folder).unwrap(), 2, 1 << 20).unwrap_err();
    println!("{error}\nhint: {}", error.hint().unwrap_or("none"));
}

/// Nothing can be forbidden to root, so there this shows nothing.
#[test]
fn a_folder_without_write_permission_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
    if std::fs::File::create(dir.path().join("probe")).is_ok() {
        return;
    }
    let root = dir.path().join("run");
    for error in [RunDir::create(&root, "x").unwrap_err(), RunDir::create(dir.path(), "x").unwrap_err()] {
        let message = error.to_string();
        assert!(
            message.starts_with("cannot ") && message.contains(&*dir.path().to_string_lossy()),
            "{message}"
        );
        assert!(message.contains("Permission denied"), "{message}");
        assert!(error.hint().unwrap().contains("who may write there"));
    }
    let error = save(&Checkpoints::open(dir.path()).unwrap(), 1, 10).unwrap_err();
    assert!(error.to_string().contains("Permission denied"), "{error}");
}

/// A process that dies without a word frees its run folder.
#[test]
fn a_killed_run_frees_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("run");
    let mut process = child::command("processes::hold_a_run", &root).spawn().unwrap();
    let mut output = process.stdout.take().unwrap();
    let mut text = String::new();
    while !text.contains("holding") {
        let mut bytes = [0; 64];
        let length = output.read(&mut bytes).unwrap();
        assert!(length > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..length]));
    }
    let error = RunDir::resume(&root).unwrap_err();
    assert!(error.to_string().ends_with(&format!("(process {})", process.id())), "{error}");
    process.kill().unwrap();
    process.wait().unwrap();
    RunDir::resume(&root).unwrap();
}

#[test]
fn hold_a_run() {
    let Some(folder) = child::folder() else { return };
    let _run = RunDir::create(&folder, "x").unwrap();
    println!("holding");
    std::thread::sleep(std::time::Duration::from_secs(60));
}
