use super::*;

fn read(variables: &[(&str, &str)], options: &WorldOptions) -> Result<World> {
    let variables = variables.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())).collect();
    World::from_variables(&variables, options)
}

fn world(variables: &[(&str, &str)]) -> World {
    read(variables, &WorldOptions::default()).unwrap()
}

fn refused(variables: &[(&str, &str)], options: &WorldOptions) -> String {
    let error = read(variables, options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::World);
    error.to_string()
}

fn tcp(host: &str, port: u16) -> Option<Address> {
    Some(Address::Tcp { host: host.to_owned(), port })
}

const TORCHRUN: &[(&str, &str)] = &[
    ("RANK", "3"),
    ("WORLD_SIZE", "4"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "node01"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "run7"),
    ("TORCHELASTIC_RESTART_COUNT", "2"),
];

const SLURM: &[(&str, &str)] = &[
    ("SLURM_PROCID", "5"),
    ("SLURM_NTASKS", "8"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_JOB_ID", "4711"),
    ("SLURM_STEP_ID", "2"),
    ("SLURM_RESTART_COUNT", "1"),
    ("SLURM_JOB_NODELIST", "gpu[003-006]"),
];

fn without(variables: &[(&'static str, &'static str)], name: &str) -> Vec<(&'static str, &'static str)> {
    assert!(variables.iter().any(|v| v.0 == name));
    variables.iter().copied().filter(|v| v.0 != name).collect()
}

fn with<'a>(variables: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    variables.iter().chain(more).copied().collect()
}

#[test]
fn a_process_that_nobody_started_is_a_world_of_one() {
    assert_eq!(world(&[]), World { local_size: None, ..World::one() });
    // What another program may have left in the shell.
    assert_eq!(world(&[("MASTER_ADDR", "a"), ("WORLD_SIZE", "1"), ("RANK", "")]).size, 1);
    let batch =
        [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("ENVIRONMENT", "BATCH"), ("SLURM_JOB_ID", "1")];
    assert_eq!(world(&batch).size, 1);
    let interactive = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_STEP_ID", "4294967290")];
    assert_eq!(world(&interactive).size, 1);
}

#[test]
fn torchrun_meets_at_the_port_after_its_own() {
    let found = world(TORCHRUN);
    assert_eq!((found.rank, found.size, found.local_rank, found.local_size), (3, 4, 1, Some(2)));
    assert_eq!((found.job.as_str(), found.launcher), ("run7", "torchrun"));
    assert_eq!(found.rendezvous, tcp("node01", 29501));
}

#[test]
fn restarts_that_torchrun_counts_on_each_host_by_itself_do_not_keep_its_ranks_apart() {
    assert_eq!(world(TORCHRUN).attempt, 0);
    let one_host = with(&without(TORCHRUN, "LOCAL_WORLD_SIZE"), &[("LOCAL_WORLD_SIZE", "4")]);
    assert_eq!(world(&one_host).attempt, 2);
}

#[test]
fn torchrun_comes_before_the_launcher_that_started_torchrun() {
    let both = with(SLURM, TORCHRUN);
    assert_eq!(world(&both).launcher, "torchrun");
    let pods = with(TORCHRUN, &[("JOB_COMPLETION_INDEX", "1")]);
    assert_eq!(world(&pods).rank, 3);
}

#[test]
fn slurm_meets_on_the_first_host_of_the_step() {
    let found = world(SLURM);
    assert_eq!((found.rank, found.size, found.local_rank), (5, 8, 1));
    assert_eq!((found.job.as_str(), found.attempt, found.launcher), ("4711.2", 1, "Slurm"));
    let Some(Address::Tcp { host, port }) = found.rendezvous else { panic!("an address") };
    assert_eq!(host, "gpu003");
    assert!((20_000..30_000).contains(&port));
    // Another job on the same host meets elsewhere; all ranks of one at the same port.
    let other = world(&with(&without(SLURM, "SLURM_JOB_ID"), &[("SLURM_JOB_ID", "4712")]));
    assert_ne!(other.rendezvous, tcp("gpu003", port));
    let first = world(&with(&without(SLURM, "SLURM_PROCID"), &[("SLURM_PROCID", "0")]));
    assert_eq!(first.rendezvous, tcp("gpu003", port));
    let step = with(SLURM, &[("SLURM_STEP_NODELIST", "gpu[005-006]"), ("SLURM_STEP_NUM_TASKS", "6")]);
    assert_eq!(world(&step).size, 6);
    assert_eq!(world(&step).rendezvous, tcp("gpu005", port));
    // srun's own PMI says less.
    let pmi = with(SLURM, &[("PMI_RANK", "5"), ("PMI_SIZE", "8")]);
    assert_eq!(world(&pmi).launcher, "Slurm");
    assert_eq!(
        world(&with(SLURM, &[("MASTER_ADDR", "b"), ("MASTER_PORT", "12345")])).rendezvous,
        tcp("b", 12346)
    );
}

#[test]
fn mpirun_meets_on_this_host_or_where_master_addr_says() {
    let mpi =
        [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_RANK", "1")];
    let local = with(&mpi, &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]);
    let found = world(&local);
    assert_eq!((found.rank, found.size, found.local_rank, found.launcher), (1, 2, 1, "Open MPI"));
    assert_eq!(found.rendezvous, tcp("127.0.0.1", 29501));
    let message = refused(&mpi, &WorldOptions::default());
    assert!(message.contains("where the 2 ranks meet") && message.contains("MASTER_ADDR"), "{message}");
    assert_eq!(world(&with(&mpi, &[("MASTER_ADDR", "a"), ("MASTER_PORT", "10")])).rendezvous, tcp("a", 11));
    let pmi = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];
    assert_eq!((world(&pmi).launcher, world(&pmi).rank), ("PMI", 1));
    assert_eq!(world(&pmi).rendezvous, tcp("127.0.0.1", 29501));
}

#[test]
fn pods_of_an_indexed_job_meet_at_the_pod_with_index_0() {
    let pod = [
        ("JOB_COMPLETION_INDEX", "2"),
        ("WORLD_SIZE", "4"),
        ("HOSTNAME", "train-2"),
        ("REFRAIN_SERVICE", "ranks"),
    ];
    let found = world(&with(&pod, &[("REFRAIN_JOB", "uid-1"), ("REFRAIN_ATTEMPT", "3")]));
    assert_eq!(found.attempt, 3);
    assert_eq!((found.rank, found.size, found.local_rank, found.job.as_str()), (2, 4, 0, "uid-1"));
    assert_eq!(found.rendezvous, tcp("train-0.ranks", 29501));
    // A JobSet calls its pods by set, job and two indices.
    let set = [
        ("JOB_COMPLETION_INDEX", "3"),
        ("WORLD_SIZE", "4"),
        ("HOSTNAME", "set-ranks-0-3"),
        ("REFRAIN_SERVICE", "set"),
    ];
    assert_eq!(world(&set).rendezvous, tcp("set-ranks-0-0.set", 29501));
    assert_eq!(world(&[("JOB_COMPLETION_INDEX", "2"), ("WORLD_SIZE", "1")]).rank, 0);
    for (variables, fix) in [
        (vec![("JOB_COMPLETION_INDEX", "2")], "WORLD_SIZE is not"),
        (pod[..3].to_vec(), "REFRAIN_SERVICE is not set"),
        (with(&[pod[0], pod[1], pod[3]], &[("HOSTNAME", "custom")]), "does not end in -2"),
    ] {
        let message = refused(&variables, &WorldOptions::default());
        assert!(message.contains(fix), "{message}");
    }
}

#[test]
fn options_take_the_place_of_variables() {
    let options = WorldOptions {
        rank: Some(0),
        size: Some(2),
        local_rank: Some(0),
        local_size: Some(1),
        job: Some("mine".to_owned()),
        attempt: Some(9),
        rendezvous: Some("file:///shared/x".parse().unwrap()),
    };
    for variables in [&[][..], TORCHRUN, SLURM, &[("RANK", "x"), ("WORLD_SIZE", "-1")]] {
        let found = read(variables, &options).unwrap();
        assert_eq!((found.rank, found.size, found.local_rank, found.attempt), (0, 2, 0, 9), "{variables:?}");
        assert_eq!((found.job.as_str(), found.rendezvous), ("mine", options.rendezvous.clone()));
    }
    let half = |rank, size| refused(&[], &WorldOptions { rank, size, ..WorldOptions::default() });
    assert!(half(Some(1), None).contains("without --world-size"));
    assert!(half(None, Some(2)).contains("without --rank"));
    assert!(half(Some(0), Some(2)).contains("--rendezvous"));
}

#[test]
fn half_a_set_of_variables_is_named() {
    for (name, fix) in [
        ("RANK", "RANK is not set, but LOCAL_RANK is"),
        ("WORLD_SIZE", "WORLD_SIZE is not set, but RANK is"),
        ("LOCAL_RANK", "LOCAL_RANK is not set, but RANK is"),
        ("MASTER_ADDR", "MASTER_ADDR is not set"),
        ("MASTER_PORT", "MASTER_PORT is not set"),
    ] {
        let message = refused(&without(TORCHRUN, name), &WorldOptions::default());
        assert!(message.starts_with(fix) && message.contains("pass --"), "{message}");
    }
    for name in ["SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_NODELIST"] {
        let message = refused(&without(SLURM, name), &WorldOptions::default());
        assert!(message.contains("SLURM_PROCID is") && message.contains("pass --"), "{message}");
    }
    let message = refused(&[("OMPI_COMM_WORLD_SIZE", "2")], &WorldOptions::default());
    assert!(message.contains("OMPI_COMM_WORLD_RANK is not set"), "{message}");
    let message = refused(&[("PMI_RANK", "1")], &WorldOptions::default());
    assert!(message.contains("PMI_SIZE is not set"), "{message}");
    let message = refused(&[("WORLD_SIZE", "4")], &WorldOptions::default());
    assert!(message.contains("which rank this process is"), "{message}");
}

#[test]
fn numbers_that_make_no_world_are_named() {
    let torchrun = |name, value| {
        let changed = with(&without(TORCHRUN, name), &[(name, value)]);
        refused(&changed, &WorldOptions::default())
    };
    let message = torchrun("WORLD_SIZE", "0");
    assert!(message.contains("0 ranks") && message.contains("number of processes"), "{message}");
    let message = torchrun("RANK", "4");
    assert!(message.contains("rank 4 does not exist in a world of 4, whose ranks are 0 to 3"), "{message}");
    let message = torchrun("LOCAL_RANK", "2");
    assert!(message.contains("local rank 2 does not exist on a host with 2 ranks"), "{message}");
    for (name, value) in
        [("RANK", "two"), ("WORLD_SIZE", "-1"), ("LOCAL_RANK", "1.5"), ("MASTER_PORT", "http")]
    {
        let message = torchrun(name, value);
        assert!(message.contains(&format!("{name} is {value:?}, which is not a whole number")), "{message}");
    }
    assert!(torchrun("MASTER_PORT", "65535").contains("65534"));
    assert!(torchrun("MASTER_PORT", "0").contains("65534"));
    assert!(torchrun("MASTER_PORT", "18446744073709551615").contains("65534"));
    let message = refused(
        &with(&without(SLURM, "SLURM_JOB_NODELIST"), &[("SLURM_JOB_NODELIST", "n[")]),
        &WorldOptions::default(),
    );
    assert!(message.contains("no list of hosts"), "{message}");
    let options = WorldOptions { size: Some(0), rank: Some(0), ..WorldOptions::default() };
    assert!(refused(&[], &options).contains("0 ranks"));
    let options = WorldOptions { job: Some("a\nb".to_owned()), ..WorldOptions::default() };
    assert!(refused(&[], &options).contains("control characters"));
}
