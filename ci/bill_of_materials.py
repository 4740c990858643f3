"""A bill of materials in CycloneDX's format. The same content gives the same bytes."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

SPECIFICATION = "1.6"
SUBJECT = "subject"

Kind = Literal["application", "container", "file", "framework", "library"]


@dataclass(frozen=True, slots=True)
class Item:
    """The thing described, or a thing that is in it."""

    name: str
    version: str = ""
    kind: Kind = "library"
    purl: str = ""
    licence: str = ""
    sha256: str = ""
    description: str = ""

    @property
    def reference(self) -> str:
        """The item's name inside the document."""
        return f"file:{self.name}" if self.kind == "file" else self.purl or f"{self.name}@{self.version}"


def package_url(kind: str, name: str, version: str, namespace: str = "") -> str:
    """`pkg:pypi/rich@14.0`."""
    from packageurl import PackageURL

    return str(PackageURL(kind, namespace, name, version))


def document(
    subject: Item,
    items: Iterable[Item],
    properties: Mapping[str, str] | None = None,
    created: dt.datetime | None = None,
) -> str:
    """Items with the same reference become one; of those, one that names its licence is kept."""
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    unique = {item.reference: item for item in sorted(items, key=lambda item: (item.reference, item.licence))}
    described = _component(subject, SUBJECT)
    components = {reference: _component(item, reference) for reference, item in unique.items()}
    bill = Bom(components=components.values())
    bill.metadata.component = described
    # Otherwise it would get the current time, and differ each time.
    bill.metadata.timestamp = created  # type: ignore[assignment]
    bill.metadata.properties.update(
        Property(name=name, value=value) for name, value in (properties or {}).items()
    )
    bill.register_dependency(
        described,
        [component for reference, component in components.items() if unique[reference].kind != "file"],
    )

    bill.serial_number = uuid.UUID(int=0)
    version = SchemaVersion.from_version(SPECIFICATION)
    text = make_outputter(bill, OutputFormat.JSON, version).output_as_string(indent=2) + "\n"
    # A name or a text of an item has its quotes escaped, so that the key is found and nothing else.
    key = '"serialNumber": "urn:uuid:{}"'
    return text.replace(key.format(uuid.UUID(int=0)), key.format(uuid.uuid5(uuid.NAMESPACE_URL, text)))


def _component(item: Item, reference: str) -> Component:
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.license import DisjunctiveLicense
    from packageurl import PackageURL

    return Component(
        name=item.name,
        version=item.version or None,
        type=ComponentType(item.kind),
        bom_ref=reference,
        purl=PackageURL.from_string(item.purl) if item.purl else None,
        licenses=[DisjunctiveLicense(name=item.licence)] if item.licence else (),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=item.sha256)] if item.sha256 else (),
        description=item.description or None,
    )
