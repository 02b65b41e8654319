"""Reader of OpenVINO's intermediate representation."""
