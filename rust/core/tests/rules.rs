//! The rules of a problem: who may decide for whom, what is charged, which types are left.

use crate::common::{graph, mesh, ops};
use loadmaster_core::Error;
use loadmaster_core::ids::OpId;
use loadmaster_core::rules::Rules;
use loadmaster_core::workload::{Columns, Workload};

/// Ops 0 and 1 share a device; op 2 may run on type 0 alone. Resident bytes are 1, 2, 4, 8.
fn work() -> Workload {
    let columns = Columns {
        resident: &[1, 2, 4, 8],
        colocation: &[0, 0, -1, -1],
        allowed: &[3, 3, 1, 3],
        ..Columns::default()
    };
    Workload::plain(graph(4, &[(0, 1), (1, 2), (1, 3)]), &columns).expect("a valid workload")
}

fn refused(lead: &[u32]) -> String {
    Rules::of(&mesh(2, 1.0)).led_by(&work(), ops(lead)).expect_err("refused").to_string()
}

#[test]
fn an_op_follows_one_that_can_decide_for_it() {
    let work = work();
    let rules = Rules::of(&mesh(2, 1.0));
    assert_eq!(rules.leads(&work), work.lead);
    let led = rules.led_by(&work, ops(&[3, 3, 2, 3])).expect("op 3 stands for the set");
    assert_eq!(led.leads(&work), ops(&[3, 3, 2, 3]));
    assert_eq!(led.charges_of_leads(&work), [0, 0, 4, 11]);
    assert_eq!(refused(&[0, 0, 2, 2]), "lead[3] is 2: that op may run on other device types");
    assert_eq!(refused(&[0, 1, 2, 3]), "lead[1] is 1: other ops of its colocation set follow another one");
    assert_eq!(refused(&[3, 3, 2, 0]), "lead[0] is 3: that op follows another one");
}

#[test]
fn bytes_are_charged_as_given_or_what_is_resident() {
    let (work, mut rules) = (work(), Rules::of(&mesh(2, 1.0)));
    assert_eq!(*rules.charges(&work), [1, 2, 4, 8]);
    assert_eq!(*rules.capacity, [1 << 40; 2]);
    rules.op_bytes = Some([5, 5, 5, 5].into());
    assert_eq!(*rules.charges(&work), [5; 4]);
    assert_eq!(rules.charges_of_leads(&work), [10, 0, 5, 5]);
}

#[test]
fn ops_keep_to_the_types_that_all_of_their_set_may_use() {
    let (work, rules) = (work(), Rules::of(&mesh(2, 1.0)));
    let kept = rules.restricted(&work, &[1, 3, 3, 2]).expect("each has a type");
    assert_eq!(kept.allowed, [1, 1, 1, 2]);
    assert_eq!(
        rules.restricted(&work, &[3, 3, 2, 3]).expect_err("op 2 may run on type 0 alone"),
        Error::NoTypeLeft { op: OpId(2).into() }
    );
    let apart = rules.restricted(&work, &[1, 2, 1, 1]).expect_err("no type in common");
    assert!(matches!(apart, Error::NoCommonType { .. }));
    let led = rules.led_by(&work, ops(&[3, 3, 2, 3])).expect("valid");
    let parted = led.restricted(&work, &[1, 1, 1, 2]).expect_err("the set follows op 3");
    assert!(matches!(parted, Error::BadLead { .. }));
}
