//! What `install` says where it cannot work, and that it leaves alone who does not want it: each case
//! in a process of its own, which is this program again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use cuda_emu::InstallOptions;
use cudarc::driver::{CudaContext, DevicePtr, sys};

const SKIP: &str = "CUDA_EMU_TEST_SKIPS";

/// What the other tests start.
#[test]
#[ignore = "the other tests run it, in processes of their own"]
fn installs() {
    let outcome = match cuda_emu::install(&InstallOptions::skipped_by(SKIP)) {
        Ok(emulator) => format!("emulated: {}", emulator.is_emulated()),
        Err(error) => error.to_string(),
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    println!("{outcome}; library loaded: {}", maps.contains("libcuda_emu"));
}

/// Two streams that nothing orders: which of them was the last to write.
#[test]
#[ignore = "another test runs it, in processes of its own"]
fn races_streams() {
    cuda_emu::install(&InstallOptions::default()).unwrap();
    let context = CudaContext::new(0).unwrap();
    let streams = [1, 2].map(|value| (value, context.new_stream().unwrap()));
    let buffer = streams[0].1.alloc_zeros::<u8>(1).unwrap();
    let address = buffer.device_ptr(&streams[0].1).0;
    context.synchronize().unwrap();
    for (value, stream) in &streams {
        // SAFETY: the buffer has that byte.
        unsafe { sys::cuMemsetD8Async(address, *value, 1, stream.cu_stream()) }.result().unwrap();
    }
    context.synchronize().unwrap();
    println!("last: {:?}", streams[0].1.clone_dtoh(&buffer).unwrap());
}

/// What `installs` prints in a process with these variables.
fn outcome(program: &Path, variables: &[(&str, &str)]) -> String {
    printed(program, "installs", variables)
}

/// What an ignored test prints in a process of its own.
fn printed(program: &Path, test: &str, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(program);
    command.args([test, "--exact", "--ignored", "--nocapture"]);
    for name in ["DEVICE", "DRIVER", "SHUFFLE", "RESERVED", "LIBRARY", "TEST_SKIPS"] {
        command.env_remove(format!("CUDA_EMU_{name}"));
    }
    let output = command.env_remove("LD_LIBRARY_PATH").envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// This program, beside which cargo puts the library.
fn program() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// A folder of a test's own; no library is near it.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("install").join(name).join("far/from/it");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A library of a C text that goes by a name.
fn library(folder: &Path, name: &str, text: &str) -> String {
    let (source, path) = (folder.join("library.c"), folder.join("library.so"));
    std::fs::write(&source, text).unwrap();
    let name = format!("-Wl,-soname,{name}");
    let built = Command::new("cc").args(["-shared", "-fPIC", &name, "-o"]).args([&path, &source]).status();
    assert!(built.expect("cc, with which Rust links").success());
    path.to_str().unwrap().to_string()
}

#[test]
fn it_is_skipped_where_the_environment_says_so() {
    assert!(outcome(&program(), &[(SKIP, "1")]).contains("emulated: false; library loaded: false"));
    for value in ["", "0"] {
        assert!(outcome(&program(), &[(SKIP, value)]).contains("emulated: true; library loaded: true"));
    }
}

#[test]
fn an_environment_that_cannot_be_understood_is_quoted() {
    let cases = [
        ("CUDA_EMU_DEVICE", "sm_70", "CUDA_EMU_DEVICE has `sm_70`, may be sm_75, sm_80 or sm_90"),
        ("CUDA_EMU_DEVICE", "sm_80,,sm_90", "CUDA_EMU_DEVICE has ``"),
        (
            "CUDA_EMU_DEVICE",
            "sm_80,sm_80,sm_80,sm_80,sm_80,sm_80,sm_80,sm_80,sm_80",
            "9 devices, may be at most 8",
        ),
        ("CUDA_EMU_DRIVER", "new", "CUDA_EMU_DRIVER is `new`, must be a number"),
        ("CUDA_EMU_SHUFFLE", "-1", "CUDA_EMU_SHUFFLE is `-1`, must be a whole number"),
        ("CUDA_EMU_RESERVED", "yes", "CUDA_EMU_RESERVED is `yes`, must be static or apart"),
    ];
    for (name, value, message) in cases {
        let found = outcome(&program(), &[(name, value)]);
        assert!(found.contains(message) && found.contains("library loaded: false"), "{found}");
    }
}

#[test]
fn the_environments_seed_orders_streams() {
    let last = |seed: &str| {
        let text = printed(&program(), "races_streams", &[("CUDA_EMU_SHUFFLE", seed)]);
        text.split("last: ").nth(1).and_then(|rest| rest.lines().next()).unwrap().to_string()
    };
    let seeds = ["1", "2", "3", "4", "5", "6", "7", "8"];
    let orders = seeds.map(last);
    assert_eq!(orders, seeds.map(last));
    assert_eq!(orders.iter().collect::<BTreeSet<_>>().len(), 2, "{orders:?}");
}

#[test]
fn a_library_that_is_not_found_is_said_with_what_was_tried() {
    let folder = folder("not_found");
    let far = folder.join("program");
    std::fs::copy(program(), &far).unwrap();
    let found = outcome(&far, &[]);
    assert!(found.contains("libcuda_emu.so was not found"), "{found}");
    assert!(found.contains("set CUDA_EMU_LIBRARY to its path"), "{found}");
    assert!(found.contains("cannot open shared object file"), "{found}");
    let broken = folder.join("broken.so");
    std::fs::write(&broken, "no library").unwrap();
    let found = outcome(&far, &[("CUDA_EMU_LIBRARY", broken.to_str().unwrap())]);
    assert!(found.contains("was not found") && found.contains("broken.so: "), "{found}");
    // The way out that the message names.
    let real = program().with_file_name("libcuda_emu.so");
    let found = outcome(&far, &[("CUDA_EMU_LIBRARY", real.to_str().unwrap())]);
    assert!(found.contains("emulated: true"), "{found}");
}

#[test]
fn a_driver_that_is_loaded_already_is_named() {
    for name in ["libcuda.so", "libcuda.so.1"] {
        let driver = library(&folder(name), name, "int cuInit(unsigned flags) { return flags; }");
        let found = outcome(&program(), &[("LD_PRELOAD", &driver)]);
        assert!(found.contains("a real CUDA driver library is loaded already: call"), "{found}");
    }
}

#[test]
fn libraries_of_another_version_or_name_are_told_apart() {
    let text = "unsigned cuda_emu_version(void) { return 0; }";
    let other = library(&folder("version"), "libcuda.so", text);
    let found = outcome(&program(), &[("CUDA_EMU_LIBRARY", &other)]);
    assert!(found.contains("libcuda_emu.so is of another version of cuda-emu: build again"), "{found}");

    // The same library, but for its name.
    let mut bytes = std::fs::read(program().with_file_name("libcuda_emu.so")).unwrap();
    let name = b"\0libcuda.so\0";
    let places: Vec<usize> =
        (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(name)).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| bytes[at + 8] = b'b');
    let nameless = folder("name").join("libcuda_emu.so");
    std::fs::write(&nameless, bytes).unwrap();
    let found = outcome(&program(), &[("CUDA_EMU_LIBRARY", nameless.to_str().unwrap())]);
    assert!(found.contains("libcuda_emu.so does not go by the name libcuda.so"), "{found}");
}
