//! A virtual machine: its hardware, how the host starts it, hears its reports and cuts its power.

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

/// Size of an NVDIMM's label in bytes. The emulator takes the label out of the NVDIMM's file. The
/// file must be longer by this size, or the namespace would be misaligned.
const LABEL_BYTES: u64 = 128 << 10;
/// Size of memory devices and disks, in bytes.
pub const DEVICE_BYTES: u64 = 512 << 20;
/// Processors of a machine.
pub const PROCESSORS: usize = 2;
/// How long a guest may report nothing, not counting the time that it waits for a processor of the
/// host. It boots in about 7 seconds on an otherwise idle machine.
const SILENCE: Duration = Duration::from_secs(240);
/// How many lines of the kernel's console are reported with a fault.
const CONSOLE_LINES: usize = 25;

/// An NVDIMM.
#[derive(Debug, Clone)]
pub struct Nvdimm {
    /// The file with its contents.
    pub image: PathBuf,
    /// What the platform reports of its persistence: `mem-ctrl` or `cpu`, as in qemu.
    pub persistence: &'static str,
    /// Whether it refuses writes.
    pub unarmed: bool,
}

/// The hardware of a machine besides processor and memory.
#[derive(Debug, Clone, Default)]
pub struct Hardware {
    /// Features that the processor lacks, by qemu's names.
    pub without: &'static [&'static str],
    /// Persistent memory.
    pub nvdimm: Option<Nvdimm>,
    /// The file behind a virtio-pmem device.
    pub virtio_pmem: Option<PathBuf>,
    /// The file behind a virtio disk, or the name of its server.
    pub disk: Option<PathBuf>,
}

impl Hardware {
    /// Returns hardware with an NVDIMM in this file.
    pub fn nvdimm(image: &Path) -> Hardware {
        let nvdimm = Nvdimm { image: image.into(), persistence: "mem-ctrl", unarmed: false };
        Hardware { nvdimm: Some(nvdimm), ..Hardware::default() }
    }

    /// Returns the arguments for qemu.
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

/// Creates the file behind a device. The file is sparse: it takes space only as it is written.
///
/// # Errors
/// The system's.
pub fn make_image(path: &Path) -> Checked {
    let make = || File::create(path)?.set_len(DEVICE_BYTES + LABEL_BYTES);
    make().map_err(|e| Fault(format!("{}: {e}", path.display())))
}

/// What all machines have in common.
#[derive(Debug)]
pub struct Factory {
    /// The unpacked packages.
    pub tools: Tools,
    /// The guest's initial file system.
    pub initramfs: PathBuf,
    /// The directory of the machines' files.
    pub dir: PathBuf,
    /// Whether to print everything that guests report.
    pub verbose: bool,
}

impl Factory {
    /// Starts a machine that does a step, given as its words.
    ///
    /// # Errors
    /// If the machine cannot be started.
    pub fn boot(&self, hardware: &Hardware, step: &[String]) -> Checked<Guest> {
        // Check the step here, because otherwise the guest would refuse it only after it has
        // booted.
        check_step(step)?;
        let console = self.dir.join("console.log");
        let mut command = self.tools.qemu_command();
        command.args(hardware.arguments());
        command.args(["-smp", &PROCESSORS.to_string(), "-m", "1G,slots=4,maxmem=8G"]);
        command.args(["-nodefaults", "-display", "none", "-no-reboot"]);
        command.arg("-kernel").arg(self.tools.kernel()).arg("-initrd").arg(&self.initramfs);
        // If the host is busy, the emulated timer is too slow to pass the kernel's check.
        let options = "console=ttyS0 quiet panic=-1 no_timer_check";
        let line = format!("{options} -- {}", step.join(" "));
        command.arg("-append").arg(line);
        command.arg("-serial").arg(format!("file:{}", console.display()));
        command.args(["-serial", "stdio"]);
        // SAFETY: the closure runs between fork and exec, where it only makes one system call.
        unsafe {
            command.pre_exec(|| {
                // However this program ends, the machine must end too.
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
        // This thread ends with the machine, or when its receiver is gone.
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

    /// Runs a step to its end, and passes everything that the guest reports to `hear`. Returns the
    /// exit code of the guest.
    ///
    /// # Errors
    /// The first error of `hear`, or if the guest ends without reporting its end.
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

/// A running machine. Dropping it kills the machine.
#[derive(Debug)]
pub struct Guest {
    child: Child,
    lines: Receiver<String>,
    console: PathBuf,
    verbose: bool,
}

impl Guest {
    /// Returns the next report of the guest, or `None` once it is off.
    ///
    /// # Errors
    /// If the guest reports nothing for long, or sends a line that is no report.
    pub fn hear(&mut self) -> Checked<Option<Said>> {
        let (start, before) = (Instant::now(), self.starved());
        loop {
            let deadline = start + SILENCE + self.starved().saturating_sub(before);
            if deadline <= Instant::now() {
                return Err(self.fault("the guest has said nothing for minutes"));
            }
            match self.next_until(deadline)? {
                Next::Said(said) => return Ok(Some(said)),
                Next::Off => return Ok(None),
                Next::Late => {}
            }
        }
    }

    /// Returns the longest time that a thread of the machine has waited for a processor.
    fn starved(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let waited = tasks.into_iter().flatten().flatten().filter_map(|task| {
            // Format: nanoseconds of running, nanoseconds of waiting, turns
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().nth(1)?.parse().ok()
        });
        Duration::from_nanos(waited.max().unwrap_or(0))
    }

    /// Returns the next report of the guest before `deadline`.
    ///
    /// # Errors
    /// If the guest sends a line that is no report.
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

    /// Cuts the power, and returns what was reported until then.
    ///
    /// # Errors
    /// If the machine cannot be killed, or its guest has sent a line that is no report.
    pub fn cut(mut self) -> Checked<Vec<Said>> {
        self.child.kill().map_err(|e| Fault(format!("killing qemu: {e}")))?;
        self.child.wait().map_err(|e| Fault(format!("waiting for qemu: {e}")))?;
        let mut rest = Vec::new();
        while let Next::Said(said) = self.next_until(Instant::now() + SILENCE)? {
            rest.push(said);
        }
        Ok(rest)
    }

    /// Makes a fault that includes the end of the kernel's console.
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

/// The result of waiting for a guest.
#[derive(Debug)]
pub enum Next {
    /// The guest reported something.
    Said(Said),
    /// The machine is off.
    Off,
    /// The deadline has passed.
    Late,
}
