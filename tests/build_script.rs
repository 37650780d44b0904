//! The build script's decisions: which architectures, which nvcc, what is compiled, and what it says
//! where it cannot. No test needs nvcc.

#[allow(dead_code)] // The parts that compile are run by cargo.
#[path = "../build.rs"]
mod build_script;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use build_script::{
    ARCHITECTURES, architectures, check_version, find_nvcc, in_parallel, line_info, one_source, ptx_arch,
    sources,
};

const NVCC: &str = if cfg!(windows) { "nvcc.exe" } else { "nvcc" };
/// Where the wheels put it in a Python environment.
const IN_VENV: &str = "lib/python3.11/site-packages/nvidia/cu13/bin";

/// A folder of our own with an empty nvcc in each of `folders`.
fn machine(folders: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for folder in folders {
        fs::create_dir_all(root.path().join(folder)).unwrap();
        fs::write(root.path().join(folder).join(NVCC), "").unwrap();
    }
    root
}

/// What is found on such a machine with variables that are paths in it.
fn found(root: &Path, variables: &[(&str, &str)]) -> Result<PathBuf, String> {
    let env = |name: &str| {
        let value = variables.iter().find(|(known, _)| *known == name);
        value.map(|(_, path)| OsString::from(root.join(path)))
    };
    find_nvcc(&env, root)
}

#[test]
fn nvcc_is_looked_for_in_the_order_that_the_script_documents() {
    let venv = format!("venv/{IN_VENV}");
    let own_venv = format!(".cuda-venv/{IN_VENV}");
    let root = machine(&["named", "home/bin", "path/bin", &venv, "folder", &own_venv]);
    let named = format!("named/{NVCC}");
    let mut variables = vec![
        ("NVCC", named.as_str()),
        ("CUDA_HOME", "home"),
        ("CUDA_PATH", "path"),
        ("OTTAVA_CUDA_VENV", "venv"),
        ("PATH", "folder"),
    ];
    for expected in ["named", "home/bin", "path/bin", &venv, "folder"] {
        assert_eq!(found(root.path(), &variables).unwrap(), root.path().join(expected).join(NVCC));
        variables.remove(0);
    }
    if !Path::new("/usr/local/cuda/bin").join(NVCC).exists() {
        assert_eq!(found(root.path(), &variables).unwrap(), root.path().join(own_venv).join(NVCC));
    }
}

#[test]
fn a_toolkit_without_a_compiler_is_passed_over() {
    let root = machine(&["folder"]);
    let variables = [("CUDA_HOME", "runtime-only"), ("PATH", "folder")];
    assert_eq!(found(root.path(), &variables).unwrap(), root.path().join("folder").join(NVCC));
}

#[test]
fn relative_folders_of_path_are_passed_over() {
    let root = machine(&["folder"]);
    let up: PathBuf = std::env::current_dir().unwrap().components().skip(1).map(|_| "..").collect();
    let relative = up.join(root.path().strip_prefix("/").unwrap_or(root.path())).join("folder");
    let folders = [PathBuf::new(), relative, root.path().join("folder")];
    let path = std::env::join_paths(&folders).unwrap();
    let nvcc = find_nvcc(&|name| (name == "PATH").then(|| path.clone()), root.path()).unwrap();
    assert_eq!(nvcc, folders[2].join(NVCC));
}

#[test]
fn a_variable_that_names_the_compiler_and_leads_nowhere_is_an_error() {
    let root = machine(&["folder"]);
    for (name, path) in [("NVCC", "missing/nvcc"), ("OTTAVA_CUDA_VENV", "missing")] {
        let message = found(root.path(), &[(name, path), ("PATH", "folder")]).unwrap_err();
        assert!(message.starts_with(&format!("{name}: expected ")) && message.contains(path), "{message}");
    }
}

#[test]
fn without_nvcc_one_line_says_how_to_get_it() {
    if Path::new("/usr/local/cuda/bin").join(NVCC).exists() {
        println!("not tested: this machine has a toolkit where every build looks");
        return;
    }
    let message = found(machine(&[]).path(), &[]).unwrap_err();
    assert_eq!(message.lines().count(), 1, "{message}");
    for needed in ["CUDA_HOME", "pip install", "'nvidia-cuda-nvcc==13.0.*'", "OTTAVA_CUDA_VENV"] {
        assert!(message.contains(needed), "{needed}: {message}");
    }
}

#[test]
fn architectures_are_numbers_with_at_most_a_letter() {
    assert_eq!(architectures(ARCHITECTURES).unwrap().len(), 6);
    assert_eq!(architectures(" 80, 90a,80,").unwrap(), ["80", "90a"]);
    for wrong in ["", ",", "sm_80", "8", "80;90", "90A", "1000", "90aa", "a"] {
        let message = architectures(wrong).unwrap_err();
        assert!(message.contains("80,86,89"), "{wrong}: {message}");
    }
}

#[test]
fn source_lines_are_kept_for_tests_and_for_who_asks() {
    for (wish, profile, kept) in [
        (None, "debug", true),
        (None, "release", false),
        (Some("1"), "release", true),
        (Some("0"), "debug", false),
    ] {
        assert_eq!(line_info(wish, Some(profile)), Ok(kept), "{wish:?}, {profile}");
    }
    assert_eq!(line_info(None, None), Ok(false));
    assert!(line_info(Some("yes"), None).unwrap_err().contains("expected 0 or 1, found `yes`"));
}

#[test]
fn machine_code_is_made_from_the_ptx_of_the_same_or_an_earlier_card() {
    for (arch, ptx) in [("80", "80"), ("86", "80"), ("89", "80"), ("90", "90"), ("90a", "90a"), ("120", "90")]
    {
        assert_eq!(ptx_arch(arch), ptx);
    }
}

#[test]
fn every_kernel_file_is_compiled_and_no_header() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels-cu");
    let names = sources(&folder).unwrap();
    assert!(names.len() >= 10 && names.is_sorted(), "{names:?}");
    assert_eq!(one_source(&names).lines().count(), names.len());
    assert!(one_source(&names).starts_with("#include \"activations.cu\"\n"));
    assert!(sources(&folder.join("common")).unwrap_err().contains("found none"));
}

#[test]
fn parallel_work_does_each_item_once_and_stops_at_a_failure() {
    let items: Vec<usize> = (0..100).collect();
    let sum = AtomicUsize::new(0);
    let add = |item: &usize| {
        sum.fetch_add(*item, Ordering::Relaxed);
        Ok(())
    };
    in_parallel(&items, 3, add).unwrap();
    assert_eq!(sum.into_inner(), 4950);

    let done = AtomicUsize::new(0);
    let fail_at_5 = |item: &usize| {
        done.fetch_add(1, Ordering::Relaxed);
        if *item == 5 { Err(format!("item {item}")) } else { Ok(()) }
    };
    assert_eq!(in_parallel(&items, 1, fail_at_5).unwrap_err(), "item 5");
    assert_eq!(done.into_inner(), 6);
}

#[test]
fn an_old_nvcc_is_refused_and_a_new_one_warned_of() {
    let said = |release: &str| {
        format!("nvcc: NVIDIA (R) Cuda\nCuda compilation tools, release {release}, V9\nBuild x")
    };
    assert_eq!(check_version(&said("13.0")), Ok(None));
    let warning = check_version(&said("13.1")).unwrap().unwrap();
    assert!(warning.contains("13.1") && warning.contains("driver") && !warning.contains('\n'), "{warning}");
    assert!(check_version(&said("14.0")).unwrap().is_some());
    for old in ["12.9", "11.8", "9.0"] {
        let error = check_version(&said(old)).unwrap_err();
        assert!(
            error.contains("expected CUDA 13.0") && error.contains(old) && !error.contains('\n'),
            "{error}"
        );
    }
    for nonsense in ["", "no compiler at all", "release x.y,"] {
        assert!(check_version(nonsense).unwrap_err().contains("expected a release"), "{nonsense}");
    }
}
