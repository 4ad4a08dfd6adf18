//! A VFS between SQLite and the system. Operations in folders that a test controls go through its [`Disk`]. All others are
//! forwarded to the system unchanged.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use rusqlite::ffi::*;

use super::disk::{Disk, Protection};

/// The controlled folders.
static DISKS: Mutex<Vec<(PathBuf, Weak<Disk>)>> = Mutex::new(Vec::new());

/// Controls an empty folder until the disk is dropped.
pub(crate) fn control(folder: &Path, disk: &Arc<Disk>) {
    register();
    assert!(std::fs::read_dir(folder).unwrap().next().is_none(), "the folder must be empty");
    let mut disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
    disks.retain(|(_, disk)| disk.strong_count() > 0);
    disks.push((folder.canonicalize().unwrap(), Arc::downgrade(disk)));
}

/// The disk of a path in a controlled folder, and the file name.
fn controlled(path: &Path) -> Option<(Arc<Disk>, String)> {
    let folder = path.parent()?;
    let disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
    let disk = disks.iter().find(|(known, _)| known == folder)?.1.upgrade()?;
    Some((disk, path.file_name()?.to_str()?.to_owned()))
}

/// SQLite's default VFS.
struct Wrapped(*mut sqlite3_vfs);

// SAFETY: it is never written to after it was registered, and SQLite calls it from any thread.
unsafe impl Send for Wrapped {}
// SAFETY: as above.
unsafe impl Sync for Wrapped {}

static WRAPPED: OnceLock<Wrapped> = OnceLock::new();

fn wrapped_vfs() -> *mut sqlite3_vfs {
    WRAPPED.get().expect("registered before it is called").0
}

/// Registers this VFS as the default of the process.
fn register() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        // SAFETY: SQLite may be asked for its default VFS at any time; it lives for ever.
        let system = unsafe { sqlite3_vfs_find(std::ptr::null()) };
        assert!(!system.is_null());
        WRAPPED.set(Wrapped(system)).ok().expect("this is the only place that sets it");
        // SAFETY: the pointer was just given by SQLite, and the structure is plain data. What is not replaced below
        // does not look at the VFS that it is called with, or only at fields that are copied here.
        let mut vfs = unsafe { std::ptr::read(system) };
        vfs.szOsFile += OFFSET as c_int;
        vfs.pNext = std::ptr::null_mut();
        vfs.zName = c"postbox-test".as_ptr();
        vfs.xOpen = Some(open);
        vfs.xDelete = Some(delete);
        // SAFETY: it is never freed, and all its functions follow the contract of SQLite.
        let code = unsafe { sqlite3_vfs_register(Box::leak(Box::new(vfs)), 1) };
        assert_eq!(code, SQLITE_OK);
    });
}

/// A controlled file. The system's file follows it in the same memory.
#[repr(C)]
struct File {
    base: sqlite3_file,
    handle: *mut Handle,
}

const OFFSET: usize = size_of::<File>();

struct Handle {
    disk: Arc<Disk>,
    file: usize,
    /// Whether the next sync also syncs the folder.
    syncs_folder: bool,
    /// The path of the shared-memory file.
    shared: PathBuf,
}

/// # Safety
/// The file was opened by `open` as a controlled file, and no other reference to its handle exists.
unsafe fn handle<'a>(file: *mut sqlite3_file) -> &'a mut Handle {
    // SAFETY: by the contract of this function it is a `File`, whose handle lives until it is closed.
    unsafe { &mut *(*file.cast::<File>()).handle }
}

/// The system's file behind a controlled file, and its methods.
///
/// # Safety
/// The file was opened by `open` as a controlled file.
unsafe fn behind<'a>(file: *mut sqlite3_file) -> (*mut sqlite3_file, &'a sqlite3_io_methods) {
    // SAFETY: SQLite allocated `szOsFile` bytes, which is room for both files, and both were opened together.
    unsafe {
        let real = file.cast::<u8>().add(OFFSET).cast::<sqlite3_file>();
        (real, &*(*real).pMethods)
    }
}

unsafe extern "C" fn open(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    let vfs = wrapped_vfs();
    // SAFETY: the system's VFS lives for ever and has all its functions.
    let system = unsafe { (*vfs).xOpen.expect("a VFS opens files") };
    // SAFETY: the name is null for a temporary file, and a string of C otherwise.
    let path = (!name.is_null()).then(|| unsafe { path_of(name) });
    let Some((disk, short)) = path.as_deref().and_then(controlled) else {
        // SAFETY: these are the arguments that SQLite gave, and there is more room than the system needs.
        return unsafe { system(vfs, name, file, flags, out) };
    };
    let path = path.expect("it is controlled");
    let is_database = flags & SQLITE_OPEN_MAIN_DB != 0;
    // SAFETY: SQLite passes memory for a file. A file without methods is not closed.
    unsafe { (*file).pMethods = std::ptr::null() };
    let protection = disk.protection();
    let is_fixed = matches!(protection, Protection::Folder | Protection::All);
    if is_fixed && !path.exists() {
        // The same error as the system's VFS returns in a folder without write permission.
        return if is_database { SQLITE_CANTOPEN } else { SQLITE_READONLY_DIRECTORY };
    }
    let is_read_only = match protection {
        Protection::All => true,
        Protection::File => is_database,
        Protection::Folder | Protection::None => false,
    };
    let flags = match is_read_only {
        true => flags & !(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE) | SQLITE_OPEN_READONLY,
        false => flags,
    };
    // SAFETY: behind the `File` there is room for the system's file, and the rest is as SQLite gave it.
    let code = unsafe {
        let real = file.cast::<u8>().add(OFFSET).cast::<sqlite3_file>();
        (*real).pMethods = std::ptr::null();
        let code = system(vfs, name, real, flags, out);
        if code != SQLITE_OK
            && let Some(methods) = (*real).pMethods.as_ref()
        {
            methods.xClose.expect("a file is closed")(real);
        }
        code
    };
    if code != SQLITE_OK {
        return code;
    }
    let is_journal = flags & (SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_JOURNAL) != 0;
    let handle = Handle {
        file: disk.open(&short, is_database),
        disk,
        syncs_folder: is_journal && flags & SQLITE_OPEN_CREATE != 0,
        shared: path.with_file_name(format!("{short}-shm")),
    };
    let opened = File { base: sqlite3_file { pMethods: &METHODS }, handle: Box::into_raw(Box::new(handle)) };
    // SAFETY: there is room for a `File`, and SQLite aligns the memory of files to eight bytes.
    unsafe { file.cast::<File>().write(opened) };
    SQLITE_OK
}

/// # Safety
/// It is a string of C.
unsafe fn path_of(name: *const c_char) -> PathBuf {
    // SAFETY: by the contract of this function.
    PathBuf::from(unsafe { CStr::from_ptr(name) }.to_str().expect("tests have plain names"))
}

unsafe extern "C" fn delete(_: *mut sqlite3_vfs, name: *const c_char, folder_too: c_int) -> c_int {
    let vfs = wrapped_vfs();
    // SAFETY: SQLite passes the name of a file, and the system's VFS has all its functions.
    let (path, system) = unsafe { (path_of(name), (*vfs).xDelete.expect("a VFS deletes files")) };
    // SAFETY: these are the arguments that SQLite gave.
    let system = || unsafe { system(vfs, name, folder_too) };
    match controlled(&path) {
        None => system(),
        Some((disk, _)) if matches!(disk.protection(), Protection::Folder | Protection::All) && path.exists() => {
            SQLITE_IOERR_DELETE
        }
        Some((disk, short)) => disk.delete(&short, folder_too != 0, system),
    }
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: SQLite closes a file once, and it was opened by `open`.
    unsafe {
        let (real, methods) = behind(file);
        let code = methods.xClose.expect("a file is closed")(real);
        drop(Box::from_raw((*file.cast::<File>()).handle));
        code
    }
}

unsafe extern "C" fn write(file: *mut sqlite3_file, bytes: *const c_void, many: c_int, at: sqlite3_int64) -> c_int {
    // SAFETY: SQLite calls it with a file that `open` made, and that many bytes.
    let (handle, (real, methods), bytes) =
        unsafe { (handle(file), behind(file), std::slice::from_raw_parts(bytes.cast::<u8>(), many as usize)) };
    handle.disk.write(handle.file, at as usize, bytes, |bytes| {
        // SAFETY: the bytes, or the first of them, go where SQLite wants them.
        unsafe { methods.xWrite.expect("a file is written")(real, bytes.as_ptr().cast(), bytes.len() as c_int, at) }
    })
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, size: sqlite3_int64) -> c_int {
    // SAFETY: SQLite calls it with a file that `open` made.
    let (handle, (real, methods)) = unsafe { (handle(file), behind(file)) };
    handle.disk.truncate(handle.file, size as usize, || {
        // SAFETY: the system's file is open.
        unsafe { methods.xTruncate.expect("a file is truncated")(real, size) }
    })
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, _: c_int) -> c_int {
    // SAFETY: SQLite calls it with a file that `open` made.
    let handle = unsafe { handle(file) };
    let code = handle.disk.sync(handle.file, handle.syncs_folder);
    handle.syncs_folder &= code != SQLITE_OK;
    code
}

unsafe extern "C" fn map_shared(
    file: *mut sqlite3_file,
    region: c_int,
    size: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: SQLite calls it with a file that `open` made.
    let (handle, (real, methods)) = unsafe { (handle(file), behind(file)) };
    let is_fixed = matches!(handle.disk.protection(), Protection::Folder | Protection::All);
    if is_fixed && !handle.shared.exists() {
        return SQLITE_CANTOPEN;
    }
    // SAFETY: these are the arguments that SQLite gave.
    unsafe { methods.xShmMap.expect("a file has shared memory")(real, region, size, extend, out) }
}

unsafe extern "C" fn barrier(file: *mut sqlite3_file) {
    // SAFETY: SQLite calls it with a file that `open` made.
    unsafe {
        let (real, methods) = behind(file);
        methods.xShmBarrier.expect("a file has shared memory")(real);
    }
}

/// Methods that are forwarded to the system.
macro_rules! forward {
    ($($name:ident as $method:ident ( $($argument:ident: $type:ty),* );)*) => {$(
        unsafe extern "C" fn $name(file: *mut sqlite3_file $(, $argument: $type)*) -> c_int {
            // SAFETY: SQLite calls it with a file that `open` made and with what the system expects.
            unsafe {
                let (real, methods) = behind(file);
                methods.$method.expect("files of the system can do all")(real $(, $argument)*)
            }
        }
    )*};
}

forward! {
    read as xRead(bytes: *mut c_void, many: c_int, at: sqlite3_int64);
    size as xFileSize(size: *mut sqlite3_int64);
    lock as xLock(level: c_int);
    unlock as xUnlock(level: c_int);
    is_reserved as xCheckReservedLock(out: *mut c_int);
    file_control as xFileControl(operation: c_int, argument: *mut c_void);
    sector_size as xSectorSize();
    characteristics as xDeviceCharacteristics();
    lock_shared as xShmLock(offset: c_int, many: c_int, flags: c_int);
    unmap_shared as xShmUnmap(delete: c_int);
}

/// Version 2 of the methods has no memory mapping, so that each write goes through this VFS.
static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(is_reserved),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: Some(map_shared),
    xShmLock: Some(lock_shared),
    xShmBarrier: Some(barrier),
    xShmUnmap: Some(unmap_shared),
    xFetch: None,
    xUnfetch: None,
};
