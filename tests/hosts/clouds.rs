//! Points that were sent from one host to another are unchanged.

use rgaps_media::Media;

use crate::world::{World, example};

#[test]
fn points_that_are_published_on_one_host_are_saved_the_same_on_another() {
    let Some(world) = World::new(2) else { return };
    let saved = world.folder("saved");
    let file = example("saddle.pcd");
    let mut subscriber = world.sub(1, "sub", &["cloud", "--save", saved.to_str().unwrap(), "--count", "1"]);
    let input = file.to_str().unwrap();
    let mut publisher = world.publish(0, "pub", &["cloud", "--input", input, "--wait-for", "1"]);
    publisher.summary(&world);
    assert_eq!(subscriber.summary(&world)["mismatched"], 0);
    let files: Vec<_> = std::fs::read_dir(&saved).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [came] = files.as_slice() else { panic!("{files:?}") };
    match (rgaps_media::load(&file).unwrap(), rgaps_media::load(came).unwrap()) {
        (Media::Cloud { meta, bytes }, Media::Cloud { meta: came_meta, bytes: came_bytes }) => {
            assert!(bytes == came_bytes, "{} bytes published, {} saved", bytes.len(), came_bytes.len());
            assert_eq!(meta.fields(), came_meta.fields());
            assert_eq!(
                (meta.width, meta.height, meta.point_step),
                (came_meta.width, came_meta.height, came_meta.point_step)
            );
        }
        other => panic!("{other:?}"),
    }
}
