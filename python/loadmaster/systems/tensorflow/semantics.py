"""TensorFlow: nothing is planned for it, plans of whole ops are written."""

from loadmaster.systems.registry import System, WrittenForm

SYSTEMS = (
    System(
        "tensorflow",
        form=WrittenForm(
            "loadmaster.systems.tensorflow.write:tensorflow", "TensorFlow device per node (JSON)"
        ),
    ),
    System(
        "tensorflow-graph",
        form=WrittenForm(
            "loadmaster.systems.tensorflow.write:tensorflow_graph",
            "TensorFlow GraphDef with devices (.pb)",
            is_file=True,
        ),
    ),
)
