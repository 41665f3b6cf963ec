"""Which of the slow tests and those of the container run, and which of them first."""

import re

import pytest

# A minute and more each.
LONG = (
    "tests/test_docs.py::test_the_commands_of_a_page_run",
    "tests/test_experiments.py::test_it_trains_three_steps",
    "tests/fault/test_kills.py::test_kills_at_random_moments",
    "tests/nodes/test_faults.py::test_random_faults_end_in_the_same_bits",
    "tests/nodes/test_faults.py::test_a_lost_machine_is_done_without",
    "tests/nodes/test_faults.py::test_one_that_comes_again_as_another",
    "tests/nodes/test_meeting.py::test_what_two_machines_trained_is_reproduced",
    "tests/nodes/test_meeting.py::test_several_machines_end_in_the_bits_of_one",
    "tests/nodes/test_meeting.py::test_a_run_that_only_the_first_machine_has",
    "tests/nodes/test_page.py::test_the_commands_of_the_page_run",
    "tests/test_sweep.py::test_killed_three_times_it_has_each_trial_once_and_the_same",
    "tests/test_own_code.py::test_it_trains_to_the_same_bits_resumes_and_is_reproduced",
    "tests/test_lockstep.py::test_one_hash_on_one_two_and_four_processes",
    "tests/slurm/test_slurm.py",
    "tests/test_deploy.py::test_a_run_goes_on_from_the_bucket",
    "tests/test_migrating.py::test_the_old_launch_lines",
    "tests/test_migrating.py::test_a_script_and_ours_end_in_the_same_weights",
    "tests/test_alive.py::test_two_mounts_of_one_folder",
    "tests/test_sharded.py::test_a_model_that_one_process_has_no_memory_for",
    "tests/test_sharded.py::test_the_bits_of_one_process",
    "tests/test_sharded.py::test_activations_that_are_computed_again",
    "tests/test_stages.py::test_copies_that_are_moved",
    "tests/test_stages.py::test_stages_end_in_the_bits_of_one_process",
    "tests/test_stages.py::test_where_it_is_cut_may_be_said",
    "tests/test_company.py::test_who_is_slow_is_given_fewer_lanes",
    "tests/test_export.py::test_models_go_into_all_formats",
    "tests/portable/test_cpus.py::test_the_same_bits",
)

# What is promised first, each with one case of ten to twenty seconds: these are in every share.
# One of the tests that run alone, and some of the container, are among them.
CORE = (
    "tests/test_lockstep.py::test_one_hash_on_one_two_and_four_processes[batch norm, sgd",
    "tests/test_lockstep.py::test_one_hash_on_one_two_and_four_processes[dropout, adamw]",
    "tests/test_run.py::test_stopped_and_continued_ends_in_the_same_bits[clipping]",
    "tests/fault/test_kills.py::test_elastic_schedules[2]",
    "tests/fault/test_kills.py::test_what_the_main_process_holds_is_saved[2]",
    "tests/fault/test_stops.py::test_a_signal_saves_and_ends_with_75[15-2-in a save]",
    "tests/fault/test_stops.py::test_a_launcher_that_is_killed_leaves_no_ghosts[make train-2]",
    "tests/fault/test_stops.py::test_a_full_disk_keeps_the_last_checkpoint[one-moment1]",
    "tests/fault/test_idioms.py::test_the_same_bits_on_four_processes_and_after_a_kill[hebbian",
    "tests/test_processes.py::test_a_signal_to_the_launch_saves_and_stops[2-15]",
    "tests/test_processes.py::test_evaluation_is_exact_on_one_two_and_three_processes",
    "tests/test_sharded.py::test_the_bits_of_one_process[no batch norm",
    "tests/test_sharded.py::test_killed_it_goes_on_on_another_number[sharded, then whole]",
    "tests/test_stages.py::test_stages_end_in_the_bits_of_one_process[adamw, clipping]",
    "tests/test_stages.py::test_copies_of_a_model_in_stages_end_in_the_bits_of_one_process[batch",
    "tests/nodes/test_meeting.py::test_another_machine_is_refused_by_name[code]",
    "tests/nodes/test_faults.py::test_who_is_lost_is_named_where_all_are_needed[trainer]",
    "tests/test_experiments.py::test_it_trains_three_steps[cifar10-fast]",
    "tests/test_migrating.py::test_a_script_and_ours_end_in_the_same_weights[accumulated]",
    "tests/test_export.py::test_each_file_gives_the_run_s_probabilities",
    "tests/test_predict.py::test_files_get_what_the_evaluation_gave_them[2]",
    "tests/test_finetune.py",
    "tests/test_gpu_proof.py",
    "tests/test_extending.py::test_an_example_of_the_page[A CUDA line]",
    "tests/test_make.py::test_nothing_in_a_value_is_run[$(shell touch ran)]",
    "tests/test_docs.py::test_the_commands_of_a_page_run[docs/machine.md]",
    "tests/container/test_train.py::test_the_container_ends_in_the_bits_of_the_local_environment",
    "tests/container/test_train.py::test_the_quick_tests_run_in_the_container",
    "tests/container/test_train.py::test_the_second_start_builds_nothing",
    "tests/container/test_docker_stop.py::test_a_run_goes_on_after_docker_stop_and_docker_kill[stop-1]",
    "tests/container/test_limited.py::test_the_doctor_finds_each_limit",
    "tests/container/test_limited.py::test_a_training_that_the_kernel_kills_says_so",
    "tests/container/test_configuration.py::test_every_combination_is_valid",
    "tests/container/test_confined.py::test_it_trains_read_only",
)

# Quick, and together a quarter of the CPU time of the quick ones: `make test` leaves them to
# `make test ARGS="-m more"` and CI, with the doctor's machines of public reports.
MORE = (
    "tests/test_floors.py::test_a_file_on_no_floor_and_an_arrow_upwards_are_found",
    "tests/test_numerics.py::test_operations_that_other_cpus_round_otherwise_are_refused",
    "tests/test_activations.py::test_a_step_leaves_the_same_behind",
    "tests/test_activations.py::test_the_estimate_knows_of_it",
    "tests/test_hostile.py::test_it_is_named_and_passed_over",
    "tests/test_hostile.py::test_what_is_no_file_is_not_read",
    "tests/test_hostile.py::test_a_record_of_so_many_processes_starts_none",
    "tests/test_complete.py::test_a_shell_completes",
    "tests/test_depth.py::test_torchvision_s_models_have_as_many_layers_as_their_papers_say",
    "tests/test_own_weights.py::test_a_state_beside_the_weights_that_is_no_run_s_is_passed_over",
    "tests/test_judged.py::test_a_damaged_table_is_refused_by_name",
    "tests/test_config.py::test_what_is_dumped_loads_as_it_was",
    "tests/test_host.py::test_the_newest_line_that_fits_or_a_refusal_with_the_way_out",
    "tests/test_text.py::test_documents_are_json_with_a_line_for_each_list",
    "tests/test_bad_input.py::test_another_place_for_data_that_has_none",
    "tests/test_models.py::test_torchvision_s_models_by_name",
    "tests/test_tune.py::test_bad_words_are_refused_before_anything_starts",
    "tests/test_report.py::test_names_do_nothing_to_a_page",
    "tests/test_vary.py::test_cutmix_puts_a_window_in_and_counts_its_pixels",
    "tests/doctor/test_mutilated.py::test_answers_cut_and_replaced",
    "tests/doctor/test_stress.py::test_a_copy_is_compared_with_what_was_sent",
    "tests/doctor/test_machines.py::test_a_machine_gives_just_these_findings[field-",
)


def mark(items: list[pytest.Item]) -> None:
    """Mark what is in MORE, but for what is slow besides."""
    for item in items:
        if item.nodeid.startswith(MORE) and not item.get_closest_marker("slow"):
            item.add_marker("more")


def sort(items: list[pytest.Item], workers: int = 1) -> None:
    """Each worker begins with its part of the long ones, so that the others do not wait for one at
    the end.

    Args:
        workers: of pytest-xdist, to whom `--dist worksteal` gives equal parts, one after another.
    """
    long = [item for item in items if item.nodeid.startswith(LONG)]
    rest = [item for item in items if not item.nodeid.startswith(LONG)]
    left, items[:] = len(items), []
    for worker in range(workers):
        part, left = left // (workers - worker), left - left // (workers - worker)
        mine = long[worker::workers]
        more = max(0, part - len(mine))
        items += [*mine, *rest[:more]]
        del rest[:more]
    items += rest


def strange(items: list[pytest.Item]) -> list[str]:
    """What is named here and is none of all tests."""
    names = [item.nodeid for item in items]
    return [name for name in LONG + CORE + MORE if not any(each.startswith(name) for each in names)]


def outside(items: list[pytest.Item], share: str) -> set[pytest.Item]:
    """The slow tests, and those of the container, that a share leaves out: what is in CORE it never
    does, and of the others it has every M-th, of the long ones and of the rest.

    Args:
        items: tests, of which the quick ones stay.
        share: `N/M`, from `1/M` to `M/M`: each test that is not in CORE is in one of the M.

    Raises:
        pytest.UsageError: `share` is none.
    """
    found = re.fullmatch("([0-9]+)/([0-9]+)", share)
    number, shares = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= shares:
        raise pytest.UsageError(f"--share {share}: say 1/24 to 24/24, for instance")
    slow = [
        item
        for item in sorted(items, key=lambda item: item.nodeid)
        if item.get_closest_marker("slow") or item.get_closest_marker("container")
        if not item.nodeid.startswith(CORE)
    ]
    sort(slow)
    return {item for place, item in enumerate(slow) if place % shares != number - 1}
