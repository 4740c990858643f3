"""Whether the parts of a package fit each other and the phone: one finding a cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ci.artifacts.against_sdk import judge, parts_of, version
from ci.inspect.package.contents import ABIS, PHONES, Package, PackagedLibrary, PackagedModel
from provisioning import elf
from provisioning.base.findings import Finding, Severity
from provisioning.base.rendering.text import plural
from provisioning.manifest import Soc
from provisioning.validation import tables

BACKEND, SYSTEM, FASTRPC = "libQnnHtp.so", "libQnnSystem.so", "libcdsprpc.so"
ANDROID_12 = 31
ONE_SDK = "take all of them from one SDK"
LEGACY = "android { packaging { jniLibs { useLegacyPackaging = true } } } in build.gradle"


def check(package: Package, socs: Mapping[str, Soc]) -> Iterator[Finding]:
    """`socs` are the chips that the user named."""
    htp = [library for library in package.libraries if _of_htp(library)]
    if not htp and not package.models:
        yield _finding(
            "package-empty",
            package.path,
            "it contains nothing of QNN, neither libraries nor compiled programs",
            "name another package, or look whether its build takes the libraries in (jniLibs)",
        )
        return
    for place, why in package.damaged.items():
        message = f"it cannot be loaded: {why}"
        yield _finding("package-damaged", place, message, "copy it again, or compile it again")
    yield from _libraries(package)
    yield from _one_build(htp)
    yield from _halves(package, htp, socs)
    for model in package.models:
        yield from _model(model, htp, alone=not package.libraries)
    if package.manifest is not None and any(library.arch_of("Stub") for library in htp):
        yield from _manifest(package, htp)


def _finding(
    rule: str, subject: object, message: str, fix: str, severity: Severity = Severity.ERROR
) -> Finding:
    return Finding(rule, severity, str(subject), message, fix)


def _of_htp(library: PackagedLibrary) -> bool:
    return library.name.startswith("libQnn") or library.name == "libGenie.so"


def _libraries(package: Package) -> Iterator[Finding]:
    android = tables.validation().android
    here = {(library.abi, library.name) for library in package.libraries}
    provides = tables.device_libraries().provides("aarch64-android")
    for library in package.libraries:
        if library.elf is None:
            yield _finding("package-library", library.place, library.why, "build or provision it again")
            continue
        if library.elf.beyond_end:
            # Android's loader reads them, unlike glibc's.
            message = f"it is cut short: its section headers are outside the file: {library.elf.beyond_end}"
            yield _finding("package-library", library.place, message, "build or provision it again")
            continue
        header, wanted = library.elf, ABIS.get(library.abi)
        if wanted and header.machine not in (wanted, elf.HEXAGON):
            expected = elf.Elf(64, wanted, 0).machine_name
            yield _finding(
                "package-abi",
                library.place,
                f"expected a library for {library.abi} ({expected}), found one for {header.machine_name}",
                f"take the one for {library.abi}",
            )
            continue
        arch = library.arch_of("Skel")
        if arch is not None and header.arch != arch:
            found = f"for v{header.arch}" if header.arch else f"a library for {header.machine_name}"
            message = f"expected a skel for Hexagon v{arch}, found one {found}"
            fix = f"take the one of lib/hexagon-v{arch}/unsigned"
            yield _finding("package-skel-arch", library.place, message, fix)
            continue
        if other := tables.libraries().other_name(library.name, header.soname, of_qnn=bool(library.builds)):
            message = f"it calls itself {other}: it is another library, or was renamed"
            yield _finding("package-name", library.place, message, "take it from the SDK again")
            continue
        if library.of_dsp:
            continue
        least = min(header.alignments, default=android.page_size)
        if library.abi in (PHONES, "x86_64") and least < android.page_size:
            yield _finding(
                "package-page-size",
                library.place,
                f"its segments are aligned to {least:#x}: phones with pages of 16 KB do not load it",
                "build it with NDK r28, or with -Wl,-z,max-page-size=16384; of QNN take a newer build",
                Severity(android.page_size_severity),
            )
        if library.abi == PHONES:
            missing = [
                name for name in header.needed if (library.abi, name) not in here and name not in provides
            ]
            if missing:
                yield _finding(
                    "package-needed",
                    library.place,
                    f"it needs {', '.join(missing)}, which is neither beside it nor of Android",
                    f"put it into {library.place.rpartition('/')[0]}",
                )


def _one_build(htp: Iterable[PackagedLibrary]) -> Iterator[Finding]:
    of_build: dict[str, list[str]] = {}
    for library in htp:
        for build in library.builds:
            of_build.setdefault(build, []).append(library.name)
    if len(of_build) > 1:
        listed = "; ".join(f"{build}: {', '.join(sorted({*names}))}" for build, names in of_build.items())
        yield _finding(
            "package-mixed",
            "QNN",
            f"libraries of {len(of_build)} QNN builds: {listed}",
            f"{ONE_SDK}: a phone answers a mix with error 1008 or 14001",
        )


def _halves(package: Package, htp: list[PackagedLibrary], socs: Mapping[str, Soc]) -> Iterator[Finding]:
    """The stub for Android and the skel for the DSP of each HTP arch, and what both need."""
    stubs = {arch: library for library in htp if (arch := library.arch_of("Stub"))}
    skels = {arch: library for library in htp if (arch := library.arch_of("Skel"))}
    names = {library.name for library in htp}
    for arch, library in {**stubs, **skels}.items():
        half = "Stub" if arch not in stubs else "Skel" if arch not in skels else ""
        if half:
            yield _finding(
                "package-half",
                library.place,
                f"its other half libQnnHtpV{arch}{half}.so is not in the package: HTP v{arch} cannot be used",
                f"put libQnnHtpV{arch}{half}.so of the same SDK beside it",
            )
    if not package.libraries:
        return
    wanted: dict[str, list[str]] = {}
    for model in package.models:
        for arch in _arches(model):
            wanted.setdefault(f"v{arch}", []).append(model.place)
    for name, soc in socs.items():
        wanted.setdefault(f"v{soc.arch}", []).append(name)
    held = ", ".join(f"v{arch}" for arch in stubs)
    for arch_name, users in wanted.items():
        if stubs and int(arch_name[1:]) not in {*stubs, *skels}:
            yield _finding(
                "package-arch",
                users[0],
                f"it is for HTP {arch_name}, and the package has {held} alone"
                + (f" ({len(users) - 1} more like it)" if users[1:] else ""),
                f"put libQnnHtp{arch_name.upper()}Stub.so and its skel into the package, or compile anew",
            )
    lacks = [name for name in (BACKEND, SYSTEM) if name not in names and (stubs or wanted)]
    if lacks:
        yield _finding(
            "package-lacks",
            next(iter(wanted.values()), [library.place for library in stubs.values()])[0],
            f"{' and '.join(lacks)} {'are' if lacks[1:] else 'is'} not in the package, which this needs",
            f"put {' and '.join(lacks)} of the same SDK beside the others",
        )
    elif BACKEND in names and not stubs and not skels:
        yield _finding(
            "package-lacks",
            next(library.place for library in htp if library.name == BACKEND),
            "no libQnnHtpV…Stub.so is in the package: it reaches no HTP",
            "put the stub and the skel of each chip's HTP arch beside it",
        )


def _arches(model: PackagedModel) -> list[int]:
    return sorted({arch for part in parts_of(model.contents) for arch in part.arches if part.needs_arch})


def _model(model: PackagedModel, htp: Iterable[PackagedLibrary], *, alone: bool) -> Iterator[Finding]:
    builds = sorted(
        {build for library in htp if library.name == BACKEND for build in library.builds}, key=version
    )
    if alone or not builds:
        return
    compiled = [part for part in parts_of(model.contents) if part.context.build_ids]
    answer = judge(compiled, builds, ())
    for reason in () if answer.loads else answer.says:
        yield _finding(
            "package-model",
            model.place,
            f"{model.kind}: {reason}",
            "compile it by the QNN of the package, or ship the libraries of the QNN that compiled it",
        )


def _manifest(package: Package, htp: Iterable[PackagedLibrary]) -> Iterator[Finding]:
    """What Android and FastRPC want of an app with stubs."""
    manifest, app = package.manifest, package.kind.startswith("app")
    if manifest is None:
        return
    severity = Severity.ERROR if app else Severity.WARNING
    place = f"{package.path.name}/AndroidManifest.xml"
    if FASTRPC not in manifest.native_libraries and (manifest.target_sdk >= ANDROID_12 or not app):
        yield _finding(
            "package-fastrpc",
            place,
            f"it does not ask for {FASTRPC}: from Android 12 on the app gets no DSP, and the model runs on"
            " the CPU or not at all",
            f'<uses-native-library android:name="{FASTRPC}" android:required="false" /> in <application>',
            severity,
        )
    skels = [library for library in htp if library.arch_of("Skel") and library.abi]
    if app and skels and not manifest.extracted:
        yield _finding(
            "package-unextracted",
            skels[0].place,
            "extractNativeLibs is false, so it is no file on the phone, and the DSP opens skels as files",
            f"{LEGACY}, or keep the skels in assets/ and copy them out",
        )
    if app and not manifest.extracted:
        yield from _inside(package)
    folder = "the folder that the app copies them to"
    if skels:
        folder = "applicationInfo.nativeLibraryDir"
    yield _finding(
        "package-adsp-path",
        place,
        "the DSP finds the skels only through ADSP_LIBRARY_PATH",
        f'Os.setenv("ADSP_LIBRARY_PATH", {folder}, true) before anything of QNN is loaded',
        Severity.NOTE,
    )


def _inside(package: Package) -> Iterator[Finding]:
    """Libraries that Android maps from within the APK."""
    android = tables.validation().android
    compressed = [library.place for library in package.libraries if library.compressed]
    if compressed:
        yield _finding(
            "package-compressed",
            compressed[0],
            f"extractNativeLibs is false, and {plural(len(compressed), 'library file')} in it compressed:"
            " Android does not install it",
            f"store them uncompressed, or {LEGACY}",
        )
    mapped = [library for library in package.libraries if library.abi in (PHONES, "x86_64")]
    off = [library for library in mapped if library.offset and library.offset % android.page_size]
    if off:
        yield _finding(
            "package-alignment",
            off[0].place,
            f"it begins at byte {off[0].offset} of the APK, which no page of 16 KB does"
            + (f", as do {len(off) - 1} more" if off[1:] else ""),
            "zipalign -P 16 -f 4 IN.apk OUT.apk, before it is signed",
            Severity(android.page_size_severity),
        )
