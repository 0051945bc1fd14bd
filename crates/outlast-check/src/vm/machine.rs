//! A virtual machine: what it has, how it is started, heard and cut off.

use super::guest::Step;
use super::tools::Tools;
use super::wire::{self, Said};
use crate::state::{Checked, Fault, ensure};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Bytes of an NVDIMM's label, which come out of its file: without them in its size, the
/// namespace is misaligned.
const LABEL_BYTES: u64 = 128 << 10;
/// Bytes of memory devices and disks.
const DEVICE_BYTES: u64 = 512 << 20;
/// How long a guest may say nothing. It boots in about 7 seconds where nothing else runs.
const SILENCE: Duration = Duration::from_secs(240);
/// Lines of the kernel's console that are told with a fault.
const CONSOLE_LINES: usize = 25;

/// An NVDIMM.
#[derive(Debug, Clone)]
pub struct Nvdimm {
    /// The file that holds what it holds.
    pub image: PathBuf,
    /// What the platform says of it: `mem-ctrl` or `cpu`, as qemu has it.
    pub persistence: &'static str,
    /// Whether it refuses to be written.
    pub unarmed: bool,
}

/// What a machine has besides processor and memory.
#[derive(Debug, Clone, Default)]
pub struct Hardware {
    /// Features that the processor has not, as qemu names them.
    pub without: &'static [&'static str],
    /// Persistent memory.
    pub nvdimm: Option<Nvdimm>,
    /// The file behind a virtio-pmem device.
    pub virtio_pmem: Option<PathBuf>,
    /// The file behind a virtio disk.
    pub disk: Option<PathBuf>,
}

impl Hardware {
    /// With an NVDIMM in this file.
    pub fn nvdimm(image: &Path) -> Hardware {
        let nvdimm = Nvdimm { image: image.into(), persistence: "mem-ctrl", unarmed: false };
        Hardware { nvdimm: Some(nvdimm), ..Hardware::default() }
    }

    /// Arguments of qemu.
    fn arguments(&self) -> Vec<String> {
        let mut machine = "pc,accel=tcg".to_owned();
        let mut arguments = Vec::new();
        let mut memory = |id: &str, path: &Path, bytes: u64| {
            arguments.push("-object".into());
            arguments.push(format!(
                "memory-backend-file,id={id},share=on,mem-path={},size={bytes}",
                path.display()
            ));
        };
        let mut devices = Vec::new();
        if let Some(nvdimm) = &self.nvdimm {
            machine.push_str(&format!(",nvdimm=on,nvdimm-persistence={}", nvdimm.persistence));
            memory("nv", &nvdimm.image, DEVICE_BYTES + LABEL_BYTES);
            let unarmed = if nvdimm.unarmed { "on" } else { "off" };
            let label = LABEL_BYTES;
            devices.push(format!("nvdimm,memdev=nv,label-size={label},unarmed={unarmed}"));
        }
        if let Some(path) = &self.virtio_pmem {
            memory("vp", path, DEVICE_BYTES);
            devices.push("virtio-pmem-pci,memdev=vp".into());
        }
        if let Some(path) = &self.disk {
            arguments.push("-drive".into());
            let file = path.display();
            arguments.push(format!("file={file},format=raw,if=none,id=disk,cache=writeback"));
            devices.push("virtio-blk-pci,drive=disk".into());
        }
        arguments.extend(devices.into_iter().flat_map(|device| ["-device".into(), device]));
        let mut cpu = "max".to_owned();
        self.without.iter().for_each(|feature| cpu.push_str(&format!(",{feature}=off")));
        arguments.extend(["-machine".into(), machine, "-cpu".into(), cpu]);
        arguments
    }
}

/// Makes the file behind a device. It takes space as it is written.
///
/// # Errors
/// The system's.
pub fn make_image(path: &Path) -> Checked {
    let make = || File::create(path)?.set_len(DEVICE_BYTES + LABEL_BYTES);
    make().map_err(|e| Fault(format!("{}: {e}", path.display())))
}

/// What every machine is made with.
#[derive(Debug)]
pub struct Factory {
    /// The unpacked packages.
    pub tools: Tools,
    /// The guest's file system.
    pub initramfs: PathBuf,
    /// Where files of machines are.
    pub dir: PathBuf,
    /// Prints all that guests say.
    pub verbose: bool,
}

impl Factory {
    /// Starts a machine that does a step, given as its words.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn boot(&self, hardware: &Hardware, step: &[String]) -> Checked<Guest> {
        // What the guest would refuse is refused here.
        check_step(step)?;
        let console = self.dir.join("console.log");
        let mut command = self.tools.qemu_command();
        command.args(hardware.arguments());
        command.args(["-smp", "2", "-m", "1G,slots=4,maxmem=8G"]);
        command.args(["-nodefaults", "-display", "none", "-no-reboot"]);
        command.arg("-kernel").arg(self.tools.kernel()).arg("-initrd").arg(&self.initramfs);
        let line = format!("console=ttyS0 quiet panic=-1 -- {}", step.join(" "));
        command.arg("-append").arg(line);
        command.arg("-serial").arg(format!("file:{}", console.display()));
        command.args(["-serial", "stdio"]);
        // SAFETY: between fork and exec, it makes one system call.
        unsafe {
            command.pre_exec(|| {
                // Whatever ends this program ends the machine.
                match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| Fault(format!("qemu does not start: {e}")))?;
        let output = child.stdout.take().ok_or_else(|| Fault("qemu has no output".into()))?;
        let (sender, lines) = mpsc::channel();
        // It ends with the machine, or with whom it tells.
        std::thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
                let whole = line.pop() == Some(b'\n');
                let text = String::from_utf8_lossy(&line).into_owned();
                if !whole || sender.send(text).is_err() {
                    break;
                }
                line.clear();
            }
        });
        Ok(Guest { child, lines, console, verbose: self.verbose })
    }

    /// Runs a step to its end, and hands over what the guest says. Returns the exit code of
    /// the guest.
    ///
    /// # Errors
    /// The first of `hear`; or if the guest ends without saying so.
    pub fn run(
        &self,
        hardware: &Hardware,
        step: &[String],
        mut hear: impl FnMut(&Said) -> Checked,
    ) -> Checked<u8> {
        let mut guest = self.boot(hardware, step)?;
        let mut end = None;
        while let Some(said) = guest.hear()? {
            hear(&said)?;
            if let Said::End(code) = said {
                end = Some(code);
            }
        }
        end.ok_or_else(|| guest.fault("the guest ended without saying so"))
    }
}

fn check_step(step: &[String]) -> Checked {
    #[derive(clap::Parser)]
    struct Line {
        #[command(subcommand)]
        _step: Step,
    }
    let plain = step.iter().all(|word| !word.is_empty() && !word.contains([' ', '"']));
    ensure(plain, || format!("words of a step: {step:?}"))?;
    let words = std::iter::once("guest").chain(step.iter().map(String::as_str));
    <Line as clap::Parser>::try_parse_from(words).map(drop).map_err(|e| Fault(e.to_string()))
}

/// A running machine. It is killed when this is dropped.
#[derive(Debug)]
pub struct Guest {
    child: Child,
    lines: Receiver<String>,
    console: PathBuf,
    verbose: bool,
}

impl Guest {
    /// The next that the guest says; `None` once it is off.
    ///
    /// # Errors
    /// If it says nothing for long, or what no guest says.
    pub fn hear(&mut self) -> Checked<Option<Said>> {
        let deadline = Instant::now() + SILENCE;
        match self.next_until(deadline)? {
            Next::Said(said) => Ok(Some(said)),
            Next::Off => Ok(None),
            Next::Late => Err(self.fault("the guest has said nothing for minutes")),
        }
    }

    /// The next that the guest says before `deadline`.
    ///
    /// # Errors
    /// If it says what no guest says.
    pub fn next_until(&mut self, deadline: Instant) -> Checked<Next> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    if self.verbose {
                        eprintln!("guest: {line}");
                    }
                    if let Some(said) = wire::heard(&line)? {
                        return Ok(Next::Said(said));
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Ok(Next::Late),
                Err(RecvTimeoutError::Disconnected) => return Ok(Next::Off),
            }
        }
    }

    /// Cuts the power off, and returns what was said until then.
    ///
    /// # Errors
    /// If the machine cannot be killed, or said what no guest says.
    pub fn cut(mut self) -> Checked<Vec<Said>> {
        self.child.kill().map_err(|e| Fault(format!("killing qemu: {e}")))?;
        self.child.wait().map_err(|e| Fault(format!("waiting for qemu: {e}")))?;
        let mut rest = Vec::new();
        while let Next::Said(said) = self.next_until(Instant::now() + SILENCE)? {
            rest.push(said);
        }
        Ok(rest)
    }

    /// A fault, with the end of the kernel's console.
    pub fn fault(&mut self, what: &str) -> Fault {
        let _ = self.child.kill();
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = std::io::Read::read_to_string(&mut stderr, &mut said);
        }
        let console = fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let lines: Vec<&str> = console.lines().collect();
        let tail = lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n");
        Fault(format!("{what}\nqemu: {}\nconsole:\n{tail}", said.trim()))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if self.verbose {
            let console = fs::read(&self.console).unwrap_or_default();
            eprintln!("console:\n{}", String::from_utf8_lossy(&console).trim());
        }
    }
}

/// What came of waiting for a guest.
#[derive(Debug)]
pub enum Next {
    /// It said something.
    Said(Said),
    /// It is off.
    Off,
    /// The time is over.
    Late,
}
