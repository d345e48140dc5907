"""Which folder a model source is read from on this host."""

from flexmarl.contracts.specification.team import FolderModel, PackageModel, RegisteredModel
from workers.models.packaged import packaged_folder
from workers.models.stored import stored_folder


def folder_of(source: FolderModel | PackageModel | RegisteredModel) -> str:
    """Return the folder of a model source; one that this host makes is made first.

    Raises UnsupportedModel that says what is missing.
    """
    match source:
        case FolderModel():
            return source.path
        case PackageModel():
            return str(packaged_folder(source.name))
        case RegisteredModel():
            return str(stored_folder(source.digest))
